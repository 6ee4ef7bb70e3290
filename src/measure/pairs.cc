#include "measure/pairs.h"

#include "base/check.h"

#include <algorithm>
#include <boost/math/distributions/students_t.hpp>
#include <cmath>
#include <numeric>

namespace tally::measure {
namespace {

std::vector<double> walsh_averages(std::span<const double> values) {
  std::vector<double> out;
  out.reserve(values.size() * (values.size() + 1) / 2);
  for (size_t i = 0; i < values.size(); ++i) {
    for (size_t j = i; j < values.size(); ++j) out.push_back((values[i] + values[j]) / 2);
  }
  return out;
}

// Signed-rank sums of n values whose signs are coins': how many of the 2^n assignments give each sum.
std::vector<double> rank_sum_counts(size_t n) {
  std::vector<double> counts(n * (n + 1) / 2 + 1);
  counts[0] = 1;
  for (size_t rank = 1; rank <= n; ++rank)
    for (size_t sum = counts.size() - 1; sum >= rank; --sum) counts[sum] += counts[sum - rank];
  return counts;
}

constexpr double kMissed = .05;  // of experiments, whose interval may not hold the truth

// The largest k for which the k-th smallest and the k-th largest Walsh average miss no more, and the share
// that they miss: 2 P(rank sum < k).
struct WalshRank {
  size_t k = 0;
  double missed = 1;
};
WalshRank walsh_rank(size_t n) {
  const std::vector<double> counts = rank_sum_counts(n);
  WalshRank out;
  double below = 0;
  for (const double count : counts) {
    below += count;
    const double missed = 2 * below / std::exp2(static_cast<double>(n));
    if (missed > kMissed) break;
    ++out.k, out.missed = missed;
  }
  return out;
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
  std::vector<double> walsh = walsh_averages(values);
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

std::optional<Interval> walsh_interval(std::span<const double> values) {
  TALLY_CHECK(values.size() <= kPairsMax, "walsh_interval", values.size());
  const WalshRank rank = walsh_rank(values.size());
  if (rank.k == 0) return std::nullopt;
  std::vector<double> walsh = walsh_averages(values);
  std::sort(walsh.begin(), walsh.end());
  return Interval{walsh[rank.k - 1], walsh[walsh.size() - rank.k]};
}

double walsh_confidence(size_t values) { return 1 - walsh_rank(values).missed; }

double detectable_difference(double sd, size_t pairs) {
  TALLY_CHECK(pairs >= 2, "detectable_difference", pairs);
  const auto n = static_cast<double>(pairs);
  const boost::math::students_t t(n - 1);
  return (boost::math::quantile(t, .975) + boost::math::quantile(t, .8)) * sd / std::sqrt(n);
}

}  // namespace tally::measure
