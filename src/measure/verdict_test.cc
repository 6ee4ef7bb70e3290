#include "measure/verdict.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tally::measure {
namespace {

struct Row {
  const char* what;
  double gain, low, high, p;
  size_t pairs;
  MetricKind kind;
  Verdict verdict;
};

constexpr auto kLatency = MetricKind::kLatency;
constexpr auto kMemory = MetricKind::kMemory;

TEST(Verdict, FollowsTheTable) {
  constexpr Row kRows[] = {
      {"inside the margin", .01, -.02, .03, .5, 8, kLatency, Verdict::kSame},
      {"inside the margin though not 0", .02, .01, .03, .01, 8, kLatency, Verdict::kSame},
      {"the margin of rates is narrower", .01, -.02, .03, .5, 8, MetricKind::kRate, Verdict::kUndecided},
      {"beyond", .10, .06, .14, .04, 8, kLatency, Verdict::kFaster},
      {"beyond, the other way", -.10, -.14, -.06, .04, 8, kLatency, Verdict::kSlower},
      {"memory has its own words", .10, .06, .14, .04, 8, kMemory, Verdict::kSmaller},
      {"memory, worse", -.10, -.14, -.06, .04, 8, kMemory, Verdict::kLarger},
      {"beyond, but not by the test", .10, .06, .14, .06, 8, kLatency, Verdict::kProbablyFaster},
      {"not 0, reaches into the margin", .06, .02, .10, .01, 8, kLatency, Verdict::kProbablyFaster},
      {"not 0, worse", -.06, -.10, -.02, .01, 8, kLatency, Verdict::kProbablySlower},
      {"0 is possible", .06, -.01, .13, .3, 8, kLatency, Verdict::kUndecided},
      {"five pairs cannot", .50, .45, .55, .0625, 5, kLatency, Verdict::kUndecided},
  };
  for (const Row& row : kRows) {
    const Evidence evidence{row.gain, row.low, row.high, row.p, row.pairs, {}};
    EXPECT_STREQ(verdict_word(judge(evidence, row.kind)), verdict_word(row.verdict)) << row.what;
  }
}

TEST(Verdict, NoneBelowTheNoiseOfTheMachine) {
  EXPECT_EQ(judge({.10, .06, .14, .01, 8, .12}, kLatency), Verdict::kUndecided);
  EXPECT_EQ(judge({.10, .06, .14, .01, 8, .08}, kLatency), Verdict::kFaster);
  EXPECT_EQ(judge({.00, -.01, .01, 1, 8, .08}, kLatency), Verdict::kUndecided);  // .08 > the margin
  EXPECT_EQ(judge({.00, -.01, .01, 1, 8, .03}, kLatency), Verdict::kSame);
}

TEST(Verdict, SaysHowManyPairsMore) {
  // One pair: as many as a test over six metrics needs at least.
  EXPECT_EQ(pairs_needed({.2, 0, 0, 1, 1, {}}, kLatency, 6), 7u);
  EXPECT_EQ(pairs_needed({.2, 0, 0, 1, 1, {}}, kLatency, 1), 5u);  // one test: 6
  // Half width .04, room to the margin .10 - .0488 = .0512: eight are enough for the interval.
  EXPECT_EQ(pairs_needed({.10, .06, .14, .06, 8, {}}, kLatency, 6), 1u);
  // Half width .08, room .0512: 8 x (.08 / .0512)^2 = 19.5.
  EXPECT_EQ(pairs_needed({.10, .02, .18, .06, 8, {}}, kLatency, 6), 12u);
  // On the margin: nobody runs that many.
  EXPECT_FALSE(pairs_needed({std::log1p(.05), .0, .1, .06, 8, {}}, kLatency, 6).has_value());
}

TEST(Verdict, WordsAndKinds) {
  EXPECT_STREQ(verdict_word(Verdict::kInvalid), "INVALID");
  EXPECT_STREQ(verdict_word(Verdict::kProbablyLarger), "PROBABLY_LARGER");
  EXPECT_TRUE(is_worse(Verdict::kLarger));
  EXPECT_FALSE(is_worse(Verdict::kProbablySlower));
  EXPECT_TRUE(is_undecided(Verdict::kProbablySlower));
  EXPECT_FALSE(is_undecided(Verdict::kInvalid));
}

}  // namespace
}  // namespace tally::measure
