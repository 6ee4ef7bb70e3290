#include "measure/arrival.h"

#include "measure/quantile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace tally::measure {
namespace {

// Coefficient of variation of the gaps.
double variation(const std::vector<double>& times) {
  double sum = 0, squares = 0, last = 0;
  for (const double t : times) sum += t - last, squares += (t - last) * (t - last), last = t;
  const double n = static_cast<double>(times.size()), mean = sum / n;
  return std::sqrt(squares / n - mean * mean) / mean;
}

TEST(Arrivals, AddUpToWhatWasAsked) {
  for (const Arrival kind : {Arrival::kPoisson, Arrival::kGamma, Arrival::kConstant, Arrival::kBurst})
    for (const uint64_t seed : {1, 2, 99}) {
      const auto times = arrival_times({kind, .3, 8}, 400, 2.5, seed);
      ASSERT_EQ(times.size(), 400u);
      EXPECT_TRUE(std::is_sorted(times.begin(), times.end()));
      EXPECT_GE(times.front(), 0);
      EXPECT_NEAR(times.back(), 160, 1e-9);
    }
}

TEST(Arrivals, VaryAsTheirKind) {
  EXPECT_NEAR(variation(arrival_times({Arrival::kPoisson, 1, 8}, 40'000, 1, 1)), 1, .03);
  EXPECT_NEAR(variation(arrival_times({Arrival::kGamma, 4, 8}, 40'000, 1, 1)), .5, .02);
  EXPECT_NEAR(variation(arrival_times({Arrival::kGamma, .25, 8}, 40'000, 1, 1)), 2, .1);
  EXPECT_NEAR(variation(arrival_times({Arrival::kConstant, 1, 8}, 1'000, 1, 1)), 0, 1e-6);
}

TEST(Arrivals, ComeInBursts) {
  const auto times = arrival_times({Arrival::kBurst, 1, 4}, 12, 2, 1);
  EXPECT_EQ(times, (std::vector<double>{2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6}));
}

TEST(Arrivals, AreTheSeeds) {
  const ArrivalSpec spec;
  EXPECT_EQ(arrival_times(spec, 50, 1, 7), arrival_times(spec, 50, 1, 7));
  EXPECT_NE(arrival_times(spec, 50, 1, 7), arrival_times(spec, 50, 1, 8));
  // Twice the rate: the same pattern in half of the time, so that levels can be compared.
  const auto slow = arrival_times(spec, 50, 1, 7), fast = arrival_times(spec, 50, 2, 7);
  for (size_t i = 0; i < slow.size(); ++i) EXPECT_DOUBLE_EQ(slow[i], 2 * fast[i]);
}

}  // namespace
}  // namespace tally::measure
