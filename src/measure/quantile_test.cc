#include "measure/quantile.h"

#include <gtest/gtest.h>

#include <vector>

namespace tally::measure {
namespace {

TEST(Quantile, IsNumpysDefault) {
  const std::vector<double> x{1, 2, 4, 8, 16};  // numpy.quantile(x, q)
  EXPECT_DOUBLE_EQ(quantile(x, 0), 1);
  EXPECT_DOUBLE_EQ(quantile(x, .5), 4);
  EXPECT_DOUBLE_EQ(quantile(x, .9), 12.8);
  EXPECT_DOUBLE_EQ(quantile(x, .3), 2.4);
  EXPECT_DOUBLE_EQ(quantile(x, .99), 15.68);
  EXPECT_DOUBLE_EQ(quantile(x, 1), 16);
  EXPECT_DOUBLE_EQ(quantile(std::vector{7.}, .9), 7);
  EXPECT_DOUBLE_EQ(median_of({3, 1, 2, 10}), 2.5);
}

struct RankRow {
  double q;
  size_t n, low, high;
};

TEST(Quantile, RanksEncloseWith95Percent) {
  constexpr RankRow kRows[] = {{.5, 60, 22, 39},     {.5, 100, 40, 61},    {.5, 200, 86, 115},
                               {.9, 40, 32, 40},     {.9, 120, 101, 115},  {.95, 80, 72, 80},
                               {.95, 120, 109, 119}, {.95, 200, 184, 197}, {.99, 400, 392, 400},
                               {.99, 500, 490, 500}, {.99, 1000, 983, 997}};
  for (const RankRow& row : kRows) {
    const Ranks ranks = quantile_ranks(row.n, row.q);
    EXPECT_EQ(ranks.low, row.low) << row.q << " of " << row.n;
    EXPECT_EQ(ranks.high, row.high) << row.q << " of " << row.n;
  }
}

TEST(Quantile, RanksAreBoundedFromTheRightNumberOn) {
  const std::pair<double, size_t> kEnough[] = {{.5, 6}, {.9, 36}, {.95, 72}, {.99, 368}, {.999, 3688}};
  for (const auto& [q, n] : kEnough) {
    EXPECT_TRUE(quantile_ranks(n, q).high.has_value()) << q;
    EXPECT_FALSE(quantile_ranks(n - 1, q).high.has_value()) << q;
  }
  EXPECT_FALSE(quantile_ranks(5, .5).low.has_value());
  EXPECT_FALSE(quantile_ranks(0, .5).low.has_value());
}

// The tails stay exact where single terms are far below the smallest double: 2^-200000.
TEST(Quantile, RanksOfManyValues) {
  const Ranks ranks = quantile_ranks(200'000, .5);
  EXPECT_NEAR(static_cast<double>(*ranks.low), 100'000 - 1.96 * 223.6, 2);
  EXPECT_NEAR(static_cast<double>(*ranks.high), 100'000 + 1.96 * 223.6, 2);
}

TEST(Distribution, OfKnownValues) {
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Distribution d = distribution_of(values);
  EXPECT_EQ(d.n, 100u);
  EXPECT_DOUBLE_EQ(d.mean, 50.5);
  EXPECT_NEAR(d.std, 29.011491975882016, 1e-12);  // n - 1
  EXPECT_DOUBLE_EQ(d.median, 50.5);
  EXPECT_EQ(d.p50.low, 40);
  EXPECT_EQ(d.p50.high, 61);
  EXPECT_DOUBLE_EQ(d.p99.value, 99.01);
  EXPECT_TRUE(d.p99.low.has_value());
  EXPECT_FALSE(d.p99.high.has_value());  // not bounded: n = 100
  EXPECT_EQ(distribution_of({}).n, 0u);
  EXPECT_EQ(distribution_of({4, 9, 2}).max, 9);
  EXPECT_EQ(distribution_of({4}).std, 0);
}

}  // namespace
}  // namespace tally::measure
