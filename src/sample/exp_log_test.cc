#include "sample/exp_log.h"

#include "sample/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tally::sample {
namespace {

TEST(ExpNegative, IsExactAtTheEnds) {
  EXPECT_EQ(exp_negative(0.0f), 1.0f);
  EXPECT_EQ(exp_negative(87.0f), 0.0f);
  EXPECT_EQ(exp_negative(1e30f), 0.0f);
  EXPECT_EQ(exp_negative(std::numeric_limits<float>::infinity()), 0.0f);
  EXPECT_GT(exp_negative(86.99f), std::numeric_limits<float>::min());
}

TEST(ExpNegative, IsWithinTheDocumentedError) {
  double worst = 0;
  for (float d = 0; d < 87; d += 1.37e-4f) {
    const long double truth = std::exp(-static_cast<long double>(d));
    const long double error = std::fabs(static_cast<long double>(exp_negative(d)) - truth) / truth;
    worst = std::max(worst, static_cast<double>(error));
  }
  for (float d = 1e-37f; d < 1; d *= 1.01f) {
    const long double truth = std::exp(-static_cast<long double>(d));
    worst = std::max(
        worst, static_cast<double>(std::fabs(static_cast<long double>(exp_negative(d)) - truth) / truth));
  }
  EXPECT_LT(worst, 3e-7);
}

TEST(LogPositive, IsWithinTheDocumentedError) {
  const auto check = [](double x) {
    const long double truth = std::log(static_cast<long double>(x));
    const auto error = static_cast<double>(std::fabs(static_cast<long double>(log_positive(x)) - truth));
    EXPECT_LT(error, 4e-16 * std::max(1.0, std::fabs(static_cast<double>(truth)))) << x;
  };
  for (double x = 0x1p-1022; x < 1e300; x *= 1.0173) check(x);
  for (double x = 0.5; x < 2.5; x += 0.0007) check(x);
  check(std::nextafter(1.0, 0.0));
  check(std::nextafter(1.0, 2.0));
  EXPECT_EQ(log_positive(1.0), 0.0);
}

// Known answers of the authors' test vectors (Random123, kat_vectors).
TEST(Philox, GivesTheKnownAnswers) {
  using Counter = std::array<uint32_t, 4>;
  constexpr uint32_t kOnes = 0xFFFFFFFF;
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Uniform, IsInRangeEvenAndDependsOnEveryPartOfTheKey) {
  constexpr size_t kBins = 64, kDraws = 64000;
  std::array<size_t, kBins> bins{};
  for (size_t i = 0; i < kDraws; ++i) {
    const double u = uniform(7, 0, i);
    ASSERT_GE(u, 0.0);
    ASSERT_LT(u, 1.0);
    ++bins[static_cast<size_t>(u * kBins)];
  }
  for (const size_t count : bins) EXPECT_NEAR(static_cast<double>(count), 1000.0, 150.0);
  EXPECT_NE(uniform(1, 0, 0), uniform(2, 0, 0));
  EXPECT_NE(uniform(1, 0, 0), uniform(uint64_t{1} << 32 | 1, 0, 0));
  EXPECT_NE(uniform(1, 0, 0), uniform(1, 1, 0));
  EXPECT_NE(uniform(1, 0, 0), uniform(1, 0, 1));
  EXPECT_NE(uniform(1, 0, 0), uniform(1, 0, uint64_t{1} << 32));
}

}  // namespace
}  // namespace tally::sample
