#include "measure/pairs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
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

// Ranks of the tables of the signed-rank test (5 %, two-sided).
TEST(WalshInterval, TakesTheRanksOfTheExactTest) {
  for (const size_t n : {1ul, 2ul, 5ul}) {
    EXPECT_FALSE(walsh_interval(std::vector<double>(n, 1.))) << n;
    EXPECT_EQ(walsh_confidence(n), 0) << n;
  }
  const auto six = walsh_interval(std::vector{1., 2., 3., 4., 5., 60.});
  ASSERT_TRUE(six);  // all of them
  EXPECT_EQ(six->low, 1);
  EXPECT_EQ(six->high, 60);
  EXPECT_DOUBLE_EQ(walsh_confidence(6), 1 - 2. / 64);
  // Of 8 the 4th and the 33rd of 36 averages: 1, 1.5, 2 (twice) ... 8.
  const auto eight = walsh_interval(std::vector{8., 2., 3., 4., 5., 6., 7., 1.});
  ASSERT_TRUE(eight);
  EXPECT_EQ(eight->low, 2);
  EXPECT_EQ(eight->high, 7);
  EXPECT_DOUBLE_EQ(walsh_confidence(8), 1 - 10. / 256);
  EXPECT_NEAR(walsh_confidence(20), .9516, 1e-4);
  EXPECT_NEAR(walsh_confidence(kPairsMax), .95, .005);
  const auto same = walsh_interval(std::vector<double>(12, -.5));
  ASSERT_TRUE(same);
  EXPECT_EQ(same->low, -.5);
  EXPECT_EQ(same->high, -.5);
}

// The interval holds the truth as often as it says, whatever symmetric law the pairs have.
TEST(WalshInterval, HoldsTheTruthAsOftenAsItSays) {
#ifdef TALLY_INSTRUMENTED
  constexpr int kExperiments = 400;
#else
  constexpr int kExperiments = 4'000;
#endif
  std::mt19937_64 draw(7);
  std::normal_distribution<double> normal;
  std::student_t_distribution<double> long_tails(2);
  const auto two_speeds = [&] { return (draw() % 2 == 0 ? 1 : -1) + .1 * normal(draw); };
  const std::function<double()> laws[] = {[&] { return normal(draw); }, [&] { return long_tails(draw); },
                                          two_speeds};
  for (const auto& law : laws) {
    for (const size_t n : {6ul, 8ul, 12ul, 20ul}) {
      int held = 0;
      for (int i = 0; i < kExperiments; ++i) {
        std::vector<double> values(n);
        for (double& v : values) v = law();
        const auto interval = walsh_interval(values);
        held += interval->low <= 0 && 0 <= interval->high;
      }
      const double want = walsh_confidence(n), error = std::sqrt(want * (1 - want) / kExperiments);
      EXPECT_GE(want, .95) << n;
      EXPECT_NEAR(static_cast<double>(held) / kExperiments, want, 4 * error) << n;
    }
  }
}

TEST(Detectable, FollowsSpreadAndPairs) {
  // t(7): 2.3646 + .8960; t(19): 2.0930 + .8610.
  EXPECT_NEAR(detectable_difference(.03, 8), .03 * 3.2606 / std::sqrt(8.), 1e-5);
  EXPECT_NEAR(detectable_difference(.03, 20), .03 * 2.9540 / std::sqrt(20.), 1e-5);
}

}  // namespace
}  // namespace tally::measure
