// Percentiles, with what they are worth: Hyndman-Fan type 7 and order-statistic bounds.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace tally::measure {

// x[k] + (h - k) (x[k + 1] - x[k]) with h = (n - 1) q, k = floor(h): NumPy's default.
// Requires: `sorted` ascending and not empty, 0 <= q <= 1.
double quantile(std::span<const double> sorted, double q);

// Of a copy; the same definition.
double median_of(std::vector<double> values);

// Ranks (from 1) whose order statistics enclose the q-quantile with 95 %, exact binomial tails.
struct Ranks {
  std::optional<size_t> low, high;  // absent: n is too small to bound that side
};
Ranks quantile_ranks(size_t n, double q);

struct Percentile {
  double q = 0, value = 0;
  std::optional<double> low, high;  // 95 %; absent: not bounded
};

// Of values without order. Zero everywhere when n = 0.
struct Distribution {
  size_t n = 0;
  double mean = 0, std = 0, median = 0, max = 0;  // std: of the sample (n - 1)
  Percentile p50, p90, p95, p99;
};
Distribution distribution_of(std::vector<double> values);

}  // namespace tally::measure
