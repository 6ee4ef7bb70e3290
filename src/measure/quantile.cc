#include "measure/quantile.h"

#include "base/check.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace tally::measure {
namespace {

constexpr double kTail = .025;  // on either side of a 95 % interval

// Beyond that many standard deviations a binomial term is below 1e-30.
constexpr double kReach = 12;

Percentile percentile(std::span<const double> sorted, double q) {
  const Ranks ranks = quantile_ranks(sorted.size(), q);
  Percentile out{q, quantile(sorted, q), {}, {}};
  if (ranks.low) out.low = sorted[*ranks.low - 1];
  if (ranks.high) out.high = sorted[*ranks.high - 1];
  return out;
}

}  // namespace

double quantile(std::span<const double> sorted, double q) {
  TALLY_CHECK(!sorted.empty() && q >= 0 && q <= 1, "quantile", sorted.size(), q);
  const double h = static_cast<double>(sorted.size() - 1) * q;
  const auto k = static_cast<size_t>(h);
  if (k + 1 >= sorted.size()) return sorted.back();
  return sorted[k] + (h - static_cast<double>(k)) * (sorted[k + 1] - sorted[k]);
}

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return quantile(values, .5);
}

// low: the largest r with P(Bin(n, q) <= r - 1) <= .025; high: the smallest with P >= .975.
Ranks quantile_ranks(size_t n, double q) {
  Ranks out;
  if (n == 0 || q <= 0 || q >= 1) return out;
  const auto count = static_cast<double>(n);
  const double mean = count * q, reach = kReach * std::sqrt(count * q * (1 - q)) + 1;
  double k = std::max(0., std::floor(mean - reach));
  double term = std::exp(std::lgamma(count + 1) - std::lgamma(k + 1) - std::lgamma(count - k + 1) +
                         k * std::log(q) + (count - k) * std::log1p(-q));
  double below = 0;  // P(Bin <= r - 1)
  for (size_t r = static_cast<size_t>(k) + 1; r <= n; ++r) {
    below += term;
    if (below <= kTail) out.low = r;
    if (below >= 1 - kTail) {
      out.high = r;
      break;
    }
    term *= (count - k) / (k + 1) * (q / (1 - q));
    ++k;
  }
  return out;
}

Distribution distribution_of(std::vector<double> values) {
  Distribution out;
  out.n = values.size();
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  const auto n = static_cast<double>(values.size());
  out.mean = std::accumulate(values.begin(), values.end(), 0.) / n;
  double squares = 0;
  for (const double x : values) squares += (x - out.mean) * (x - out.mean);
  if (values.size() > 1) out.std = std::sqrt(squares / (n - 1));
  out.p50 = percentile(values, .5);
  out.p90 = percentile(values, .9);
  out.p95 = percentile(values, .95);
  out.p99 = percentile(values, .99);
  out.median = out.p50.value;
  out.max = values.back();
  return out;
}

}  // namespace tally::measure
