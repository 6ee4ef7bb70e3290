// Every attention form the host can run, on one thread: a token's decode over a cache that no CPU cache holds
// (GB/s of cache read; layers in turn, the KV heads of a layer one after the other, blocks in order), rows to
// verify, rows of 8 sequences on blocks in common, and a prompt chunk of 512 behind some context (products a
// second).
#include "kernels/attention/test_cache.h"

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

namespace tally::kernels::attention {
namespace {

struct BenchShape {
  const char* name;
  uint32_t dim;
  size_t group, tokens, depth;  // depth: positions before the call's first token
};
constexpr BenchShape kShapes[] = {
    {"decode", 64, 3, 1, 4095},   {"decode", 64, 4, 1, 4095},   {"decode", 128, 1, 1, 4095},
    {"decode", 128, 1, 1, 16383}, {"decode", 128, 4, 1, 4095},  {"decode", 128, 4, 1, 16383},
    {"decode", 128, 8, 1, 4095},  {"decode", 128, 8, 1, 16383}, {"verify", 128, 4, 4, 4092},
    {"shared", 64, 3, 8, 4096},   {"shared", 64, 4, 8, 4096},   {"shared", 128, 4, 8, 4096},
    {"prefill", 64, 3, 512, 0},   {"prefill", 128, 4, 512, 0},  {"prefill", 128, 4, 512, 4096},
};
constexpr size_t kHeads = 8;
constexpr size_t kColdBytes = 160u << 20;  // more than the last cache holds

// Layers of a pool on huge pages; every layer holds the same tokens.
class BenchPool {
 public:
  BenchPool(const Form& form, uint32_t dim, size_t context, size_t bytes_min)
      : layout_(tensor::make_kv_layout(form.codec, kHeads, dim, dim, 64)), table_((context + 63) / 64) {
    std::iota(table_.begin(), table_.end(), 0u);
    layer_bytes_ = table_.size() * layout_.block_bytes;
    layers_ = (bytes_min + layer_bytes_ - 1) / layer_bytes_;
    const size_t huge = 2u << 20, bytes = (layers_ * layer_bytes_ + huge - 1) / huge * huge;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(huge, bytes)));
    madvise(memory_.get(), bytes, MADV_HUGEPAGE);
    std::mt19937 rng(1);
    const std::vector<float> values = random_values(rng, kHeads * dim * 67);
    for (size_t p = 0; p < context; ++p) {
      const float* k = values.data() + p % 61 * dim;
      form.store(layer(0), p, k, k + dim);
    }
    for (size_t i = 1; i < layers_; ++i)
      std::memcpy(memory_.get() + i * layer_bytes_, memory_.get(), layer_bytes_);
  }
  KvSequence layer(size_t i) const {
    return {.layout = &layout_, .layer = memory_.get() + i * layer_bytes_, .table = table_.data()};
  }
  const tensor::KvLayout& layout() const { return layout_; }
  size_t layers() const { return layers_; }
  size_t layer_bytes() const { return layer_bytes_; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  tensor::KvLayout layout_;
  std::vector<uint32_t> table_;
  std::unique_ptr<std::byte, Free> memory_;
  size_t layer_bytes_ = 0, layers_ = 0;
};

void run(benchmark::State& state, const Form& form, const BenchShape& shape) {
  set_float_mode();
  const bool cold = shape.tokens < 512;
  const BenchPool pool(form, shape.dim, shape.depth + shape.tokens, cold ? kColdBytes : 1);
  std::mt19937 rng(2);
  const size_t stride = shape.group * shape.dim;
  const std::vector<float> q = random_values(rng, shape.tokens * stride);
  std::vector<float> out(shape.tokens * stride);
  std::vector<uint8_t> nonfinite(shape.tokens);
  TestScratch scratch(attend_scratch_bytes(pool.layout(), shape.group));
  AttendArgs args;
  args.group = shape.group, args.q = q.data(), args.q_stride = stride;
  args.tokens = shape.tokens, args.position = shape.depth, args.score_scale = 0.1f;
  args.out = out.data(), args.out_stride = stride, args.scratch = scratch.data(),
  args.nonfinite = nonfinite.data();
  size_t layer = 0;
  for (auto _ : state) {
    args.kv = pool.layer(layer);
    for (args.kv_head = 0; args.kv_head < (cold ? kHeads : 1); ++args.kv_head) form.attend(args);
    layer = (layer + 1) % pool.layers();
  }

  const double n = static_cast<double>(shape.tokens), heads = cold ? static_cast<double>(kHeads) : 1;
  const double pairs = n * static_cast<double>(shape.depth) + n * (n + 1) / 2;
  const auto rounds = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["GOP/s"] =
      Counter(4e-9 * pairs * heads * static_cast<double>(stride) * rounds, Counter::kIsRate);
  if (cold)
    state.counters["GB/s"] =
        Counter(1e-9 * static_cast<double>(pool.layer_bytes()) * rounds, Counter::kIsRate);
}

const bool kRegistered = [] {
  for (const Form& form : forms()) {
    if (form.isa == Isa::kScalar || !host_has(form.isa)) continue;
    for (const BenchShape& shape : kShapes) {
      const std::string name = "attend/" + std::string(tensor::kv_codec_info(form.codec).name) + "/" +
                               std::string(isa_name(form.isa)) + "/" + shape.name + "/d" +
                               std::to_string(shape.dim) + "/G" + std::to_string(shape.group) + "/depth" +
                               std::to_string(shape.depth);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [&form, &shape](benchmark::State& s) { run(s, form, shape); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace tally::kernels::attention
