// Every attention form the host can run: one token over a long context (GB/s of cache read) and a prompt
// chunk (products a second), one thread, one KV head.
#include "kernels/attention/test_cache.h"

#include <benchmark/benchmark.h>

#include <string>

namespace tally::kernels::attention {
namespace {

struct BenchShape {
  uint32_t dim;
  size_t group, tokens;
};
constexpr size_t kContext = 4096;
constexpr BenchShape kShapes[] = {{64, 3, 1}, {64, 3, 512}, {128, 4, 1}, {128, 4, 512}};

void run(benchmark::State& state, const Form& form, const BenchShape& shape) {
  set_float_mode();
  TestCache cache({.codec = form.codec, .kv_heads = 1, .key_dim = shape.dim, .value_dim = shape.dim},
                  kContext, 1);
  std::mt19937 rng(1);
  const std::vector<float> kv = random_values(rng, shape.dim);
  for (size_t p = 0; p < kContext; ++p) form.store(cache.sequence(), p, kv.data(), kv.data());
  const size_t stride = shape.group * shape.dim;
  const std::vector<float> q = random_values(rng, shape.tokens * stride);
  std::vector<float> out(shape.tokens * stride);
  std::vector<uint8_t> nonfinite(shape.tokens);
  TestScratch scratch(attend_scratch_bytes(cache.layout(), shape.group));
  AttendArgs args;
  args.kv = cache.sequence(), args.group = shape.group, args.q = q.data(), args.q_stride = stride;
  args.tokens = shape.tokens, args.position = kContext - shape.tokens, args.score_scale = 0.1f;
  args.out = out.data(), args.out_stride = stride, args.scratch = scratch.data(),
  args.nonfinite = nonfinite.data();
  for (auto _ : state) form.attend(args);

  const double n = static_cast<double>(shape.tokens), before = static_cast<double>(kContext - shape.tokens);
  const double pairs = n * before + n * (n + 1) / 2;
  const double bytes =
      static_cast<double>(cache.layout().head_block_bytes * kContext / cache.layout().block_tokens);
  const auto rounds = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["GOP/s"] = Counter(4e-9 * pairs * static_cast<double>(stride) * rounds, Counter::kIsRate);
  if (shape.tokens == 1) state.counters["GB/s"] = Counter(1e-9 * bytes * rounds, Counter::kIsRate);
}

const bool kRegistered = [] {
  for (const Form& form : forms()) {
    if (form.isa == Isa::kScalar || !host_has(form.isa)) continue;
    for (const BenchShape& shape : kShapes) {
      const std::string name = "attend/" + std::string(tensor::kv_codec_info(form.codec).name) + "/" +
                               std::string(isa_name(form.isa)) + "/d" + std::to_string(shape.dim) + "/G" +
                               std::to_string(shape.group) + "/tokens" + std::to_string(shape.tokens);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [&form, &shape](benchmark::State& s) { run(s, form, shape); });
    }
  }
  return true;
}();

}  // namespace
}  // namespace tally::kernels::attention
