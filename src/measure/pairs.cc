#include "measure/pairs.h"

#include "base/check.h"
#include "measure/quantile.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <numbers>
#include <numeric>

namespace tally::measure {
namespace {

// splitmix64: the same numbers everywhere, unlike the distributions of the standard library.
class Draws {
 public:
  explicit Draws(uint64_t seed) : state_(seed) {}

  // In (0, 1).
  double uniform() { return (static_cast<double>(next() >> 11) + .5) * 0x1p-53; }
  size_t below(size_t n) { return std::min(n - 1, static_cast<size_t>(uniform() * static_cast<double>(n))); }

  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

  // Shape >= 1. Source: Marsaglia and Tsang, A simple method for generating gamma variables (2000).
  double gamma(double shape) {
    const double d = shape - 1. / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double x = normal(), v = std::pow(1 + c * x, 3);
      if (v > 0 && std::log(uniform()) < .5 * x * x + d - d * v + d * std::log(v)) return d * v;
    }
  }

 private:
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  uint64_t state_;
};

// The median of m values drawn with replacement from m sorted ones, in constant time: a draw is
// x[floor(m u)], which keeps order, so the k-th smallest draw is that of the k-th smallest of m uniforms,
// Beta(k, m + 1 - k); the one after it is the least of m - k uniforms in what is left above.
double resampled_median(std::span<const double> sorted, Draws& draws) {
  const size_t m = sorted.size(), k = (m + 1) / 2;
  const auto count = static_cast<double>(m), rank = static_cast<double>(k);
  const auto at = [&](double u) { return sorted[std::min(m - 1, static_cast<size_t>(u * count))]; };
  const double below = draws.gamma(rank), above = draws.gamma(count + 1 - rank);
  const double u = below / (below + above);
  if (m % 2 == 1) return at(u);
  const double next = 1 - (1 - u) * std::pow(draws.uniform(), 1 / (count - rank));
  return (at(u) + at(next)) / 2;
}

// Sums of all 2^n assignments of signs, ascending.
std::vector<double> signed_sums(std::span<const double> values) {
  std::vector<double> sums{0};
  for (const double v : values) {
    const size_t half = sums.size();
    sums.resize(2 * half);
    for (size_t i = 0; i < half; ++i) {
      sums[half + i] = sums[i] + v;
      sums[i] -= v;
    }
  }
  std::sort(sums.begin(), sums.end());
  return sums;
}

}  // namespace

double hodges_lehmann(std::span<const double> values) {
  std::vector<double> walsh;
  walsh.reserve(values.size() * (values.size() + 1) / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = i; j < values.size(); ++j) walsh.push_back((values[i] + values[j]) / 2);
  }
  TALLY_CHECK(!walsh.empty(), "hodges_lehmann of nothing");
  const auto middle = walsh.begin() + static_cast<std::ptrdiff_t>(walsh.size() / 2);
  std::nth_element(walsh.begin(), middle, walsh.end());
  if (walsh.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(walsh.begin(), middle)) / 2;
}

// Meets in the middle: the sums of either half, sorted, then two pointers instead of 2^n sums.
double sign_flip_p(std::span<const double> values) {
  const size_t n = values.size();
  TALLY_CHECK(n >= 1 && n <= kPairsMax, "sign_flip_p", n);
  double size = 0;
  for (const double v : values) size += std::abs(v);
  // What is equal on paper counts as equal, in whichever order it was added.
  const double seen = std::abs(std::accumulate(values.begin(), values.end(), 0.)) - 1e-12 * size;
  if (seen <= 0) return 1;
  const std::vector<double> left = signed_sums(values.first(n / 2)),
                            right = signed_sums(values.subspan(n / 2));
  double as_far = 0;  // sums >= seen; those <= -seen are as many
  size_t from = right.size();
  for (const double l : left) {
    while (from > 0 && l + right[from - 1] >= seen) --from;
    as_far += static_cast<double>(right.size() - from);
  }
  return std::min(1., 2 * as_far / std::exp2(static_cast<double>(n)));
}

std::vector<double> holm(std::span<const double> p) {
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return p[a] < p[b]; });
  std::vector<double> out(p.size());
  double least = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    least = std::max(least, std::min(1., static_cast<double>(order.size() - i) * p[order[i]]));
    out[order[i]] = least;
  }
  return out;
}

double cliffs_delta(std::vector<double> a, std::vector<double> b) {
  if (a.empty() || b.empty()) return 0;
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  double above = 0, below = 0;
  size_t less = 0, not_more = 0;  // of b, than the value of a
  for (const double x : a) {
    while (less < b.size() && b[less] < x) ++less;
    while (not_more < b.size() && b[not_more] <= x) ++not_more;
    above += static_cast<double>(less);
    below += static_cast<double>(b.size() - not_more);
  }
  return (above - below) / (static_cast<double>(a.size()) * static_cast<double>(b.size()));
}

Interval bootstrap_interval(std::span<const PairDifference> pairs, const Resampling& resampling) {
  TALLY_CHECK(!pairs.empty() && resampling.count > 0, "bootstrap_interval", pairs.size(), resampling.count);
  Draws draws(resampling.seed);
  std::vector<double> estimates(resampling.count), drawn(pairs.size());
  for (double& estimate : estimates) {
    for (double& value : drawn) {
      const PairDifference& pair = pairs[draws.below(pairs.size())];
      value = pair.requests.empty() ? pair.value : resampled_median(pair.requests, draws);
    }
    estimate = hodges_lehmann(drawn);
  }
  std::sort(estimates.begin(), estimates.end());
  return {quantile(estimates, .025), quantile(estimates, .975)};
}

double detectable_difference(double sd, size_t pairs) {
  TALLY_CHECK(pairs >= 2, "detectable_difference", pairs);
  const auto n = static_cast<double>(pairs);
  const boost::math::students_t t(n - 1);
  return (boost::math::quantile(t, .975) + boost::math::quantile(t, .8)) * sd / std::sqrt(n);
}

}  // namespace tally::measure
