#pragma once
// Measures, at start, how the linear kernels should walk memory on this machine, and what rows cost. Nothing
// here changes a result: LinearTuning decides when bytes are asked for, never what is computed (Law 1).

#include "base/pool.h"
#include "kernels/kernels.h"

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::kernels {

inline constexpr size_t kCostRows = 32;

// What was measured for one weight type.
struct FormatTuning {
  tensor::DType type{};
  LinearTuning walk;
  // cost[t - 1]: the time of t rows over that of one, weights coming from memory; never falls as t grows.
  std::array<float, kCostRows> cost{};
};

// A packed matrix to measure with: a model's own, so that tuning needs no memory.
struct TuneMatrix {
  const LinearFormat* format = nullptr;
  const std::byte* weights = nullptr;
  size_t rows = 0, k = 0;
};

// Requires: set_float_mode() on the calling thread and the pool's.
// One entry for each weight type among the matrices, in the order of KernelTable::linear.
// Takes about `budget_ms` (types share it): at least one trial of each candidate, four where time allows.
std::vector<FormatTuning> tune(const KernelTable& kernels, std::span<const TuneMatrix> matrices,
                               base::ThreadPool& pool, uint32_t budget_ms);

// The form in which tuning is kept: lines of text under a first line `key`. parse gives nothing if the key is
// another one or any line is not understood: it is measured again then.
std::string tuning_text(std::string_view key, std::span<const FormatTuning> tuning);
std::vector<FormatTuning> parse_tuning(std::string_view key, std::string_view text);

}  // namespace tally::kernels
