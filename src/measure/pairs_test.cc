#include "measure/pairs.h"

#include "measure/quantile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace tally::measure {
namespace {

TEST(HodgesLehmann, IsTheMedianOfAllMeans) {
  EXPECT_DOUBLE_EQ(hodges_lehmann(std::vector{3.}), 3);
  EXPECT_DOUBLE_EQ(hodges_lehmann(std::vector{1., 2.}), 1.5);
  // Walsh averages 1, 1.5, 3, 2, 3.5, 5.
  EXPECT_DOUBLE_EQ(hodges_lehmann(std::vector{1., 2., 5.}), 2.5);
  EXPECT_DOUBLE_EQ(hodges_lehmann(std::vector{1., 2., 3., 1000.}), 2.75);  // one outlier is no matter
}

TEST(SignFlip, SmallestPIsThatOfItsPairs) {
  for (const auto& [n, p] :
       {std::pair{5, .0625}, {6, .03125}, {8, .0078125}, {10, .001953125}, {20, 0x1p-19}}) {
    std::vector<double> values(static_cast<size_t>(n), .01);
    values[0] = .02;
    EXPECT_DOUBLE_EQ(sign_flip_p(values), p) << n;
    for (double& v : values) v = -v;
    EXPECT_DOUBLE_EQ(sign_flip_p(values), p) << n;
  }
}

TEST(SignFlip, CountsEveryAssignment) {
  std::mt19937 draw(3);
  for (size_t n = 1; n <= 12; ++n) {
    std::vector<double> v(n);
    for (double& x : v) x = std::normal_distribution(.3, 1.)(draw);
    if (n > 3) v[2] = v[1], v[0] = 0;  // ties and nothing
    double seen = 0;
    for (const double x : v) seen += x;
    size_t as_far = 0;
    for (size_t flips = 0; flips < size_t{1} << n; ++flips) {
      double sum = 0;
      for (size_t i = 0; i < n; ++i) sum += flips >> i & 1 ? -v[i] : v[i];
      as_far += std::abs(sum) >= std::abs(seen) - 1e-9;
    }
    EXPECT_DOUBLE_EQ(sign_flip_p(v), static_cast<double>(as_far) / std::exp2(n)) << n;
  }
  EXPECT_EQ(sign_flip_p(std::vector{0., 0., 0.}), 1);
  EXPECT_DOUBLE_EQ(sign_flip_p(std::vector<double>(kPairsMax, 1.)), std::exp2(1. - kPairsMax));
}

TEST(Holm, StepsDown) {
  // .005 x 4, .01 x 3, .03 x 2, and .04 x 1 not below the one before.
  EXPECT_EQ(holm(std::vector{.01, .04, .03, .005}), (std::vector{.03, .06, .06, .02}));
  EXPECT_EQ(holm(std::vector{.6, .7}), (std::vector{1., 1.}));
  // Eight pairs survive six metrics, seven they do not.
  EXPECT_LE(holm(std::vector<double>(6, .0078125))[0], .05);
  EXPECT_GT(holm(std::vector<double>(7, .0078125))[0], .05);
}

TEST(CliffsDelta, OfKnownLists) {
  EXPECT_EQ(cliffs_delta({4, 5, 6}, {1, 2, 3}), 1);
  EXPECT_EQ(cliffs_delta({1, 2, 3}, {4, 5, 6}), -1);
  EXPECT_EQ(cliffs_delta({1, 2, 3}, {3, 2, 1}), 0);
  EXPECT_DOUBLE_EQ(cliffs_delta({1, 2, 2, 3}, {2, 3}), (1. - 4) / 8);  // ties count for neither
  EXPECT_EQ(cliffs_delta({}, {1}), 0);
}

std::vector<double> ordered(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values;
}

// The shortcut for a resample's median must be the law of drawing m values and taking their median.
TEST(Bootstrap, MedianOfAResampleHasTheRightLaw) {
  std::mt19937_64 draw(5);
  for (const size_t m : {1ul, 2ul, 3ul, 10ul, 41ul, 60ul}) {
    std::vector<double> values(m);
    for (double& v : values) v = std::exponential_distribution(1.)(draw);
    values = ordered(values);
    constexpr size_t kCount = 40'000;
    std::vector<double> plain(kCount);
    for (double& p : plain) {
      std::vector<double> resample(m);
      for (double& v : resample) v = values[std::uniform_int_distribution<size_t>(0, m - 1)(draw)];
      p = median_of(std::move(resample));
    }
    plain = ordered(std::move(plain));
    // One pair: its Hodges-Lehmann estimate is the median itself, and the interval shows its law's tails.
    const PairDifference pair{median_of(values), values};
    const Interval i = bootstrap_interval(std::span(&pair, 1), {kCount, 9});
    const double spread = values.back() - values.front() + 1e-9;
    EXPECT_NEAR(i.low, quantile(plain, .025), .02 * spread) << m;
    EXPECT_NEAR(i.high, quantile(plain, .975), .02 * spread) << m;
  }
}

TEST(Bootstrap, SameSeedSameInterval) {
  std::vector<PairDifference> pairs;
  for (int i = 0; i < 8; ++i) pairs.push_back({.05 + .01 * i, {}});
  const Interval a = bootstrap_interval(pairs, {}), b = bootstrap_interval(pairs, {});
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
  const Interval other = bootstrap_interval(pairs, {10'000, 2});
  EXPECT_NEAR(other.low, a.low, .002);
  EXPECT_GT(a.low, .05);
  EXPECT_LT(a.high, .12);
  EXPECT_LT(a.low, hodges_lehmann(std::vector{.05, .06, .07, .08, .09, .1, .11, .12}));
}

TEST(Detectable, FollowsSpreadAndPairs) {
  // t(7): 2.3646 + .8960; t(19): 2.0930 + .8610.
  EXPECT_NEAR(detectable_difference(.03, 8), .03 * 3.2606 / std::sqrt(8.), 1e-5);
  EXPECT_NEAR(detectable_difference(.03, 20), .03 * 2.9540 / std::sqrt(20.), 1e-5);
}

}  // namespace
}  // namespace tally::measure
