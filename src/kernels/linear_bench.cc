// Every variant of every linear family that the host can run: bytes of packed weights a second at one token
// (the matrix is larger than the caches), operations a second at many. Compare with the roof of the machine.

#include "kernels/linear_data.h"

#include <benchmark/benchmark.h>

#include <string>

namespace tally::kernels {
namespace {

struct Case {
  LinearFormat format;
  LinearVariant variant;
  size_t rows, k, tokens;
};

void run(benchmark::State& state, const Case& c) {
  set_float_mode();
  Random random(1);
  const auto data = make_rows(c.format.type, kGroupRows, c.k, random, WeightMode::kRandom);
  const size_t group_bytes = c.format.group_bytes(c.k), groups = c.rows / kGroupRows;
  AlignedBytes weights(groups * group_bytes + kTailPadding);
  for (size_t g = 0; g < groups; ++g)
    c.format.pack(data.data(), kGroupRows, c.k, weights.data() + g * group_bytes);
  std::vector<float> x(c.tokens * c.k);
  for (float& value : x) value = random_float(random, -1, 1);
  AlignedBytes panel = make_panel(scalar_panel(c.format.panel), c.format.panel, x, c.tokens, c.k);
  std::vector<float> out(c.tokens * c.rows);

  for (auto _ : state) {
    c.variant.entry({.weights = weights.data(),
                     .rows = c.rows,
                     .k = c.k,
                     .panel = panel.data(),
                     .tokens = c.tokens,
                     .out = out.data(),
                     .out_stride = c.rows,
                     .group_begin = 0,
                     .group_end = groups});
    benchmark::ClobberMemory();
  }
  const double steps = static_cast<double>(state.iterations());
  using benchmark::Counter;
  state.counters["bytes/s"] = Counter(steps * static_cast<double>(groups * group_bytes), Counter::kIsRate);
  state.counters["op/s"] =
      Counter(steps * 2 * static_cast<double>(c.rows * c.k * c.tokens), Counter::kIsRate);
}

void run_panel(benchmark::State& state, PanelKind kind, PanelFn make, size_t tokens) {
  set_float_mode();
  constexpr size_t kK = 4096;
  Random random(1);
  std::vector<float> x(tokens * kK);
  for (float& value : x) value = random_float(random, -1, 1);
  AlignedBytes panel(panel_bytes(kind, tokens, kK));
  std::vector<uint8_t> nonfinite(tokens);
  for (auto _ : state) {
    make({.x = x.data(),
          .x_stride = kK,
          .tokens = tokens,
          .k = kK,
          .token_begin = 0,
          .token_end = tokens,
          .panel = panel.data(),
          .nonfinite = nonfinite.data()});
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(tokens * kK));
}

[[maybe_unused]] const bool kRegistered = [] {
  for (const LinearFamily& family : linear_families())
    for (const LinearVariant& variant : family.variants) {
      if (!host_has(variant.isa)) continue;
      for (const size_t tokens : {1, 2, 4, 8, 16, 512}) {
        if (variant.isa == Isa::kScalar && tokens > 1) continue;
        const size_t rows = variant.isa == Isa::kScalar ? 64 : tokens <= 16 ? 8192 : 512;
        const Case c{family.format, variant, rows, 4096, tokens};
        const std::string name = std::string(variant.name) + "/tokens:" + std::to_string(tokens);
        benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { run(state, c); });
      }
    }
  for (const PanelKind kind : {PanelKind::kF32, PanelKind::kInt32, PanelKind::kInt256})
    for (const Variant<PanelFn>& v : panel_variants(kind))
      for (const size_t tokens : {1, 64})
        if (host_has(v.isa))
          benchmark::RegisterBenchmark(
              (std::string(v.name) + "/tokens:" + std::to_string(tokens)).c_str(),
              [=](benchmark::State& state) { run_panel(state, kind, v.entry, tokens); });
  return true;
}();

}  // namespace
}  // namespace tally::kernels
