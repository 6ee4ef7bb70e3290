// How often compare is wrong, and how often it sees: many experiments on a machine that drifts.
#include "measure/compare.h"
#include "measure/pairs.h"
#include "measure/quantile.h"
#include "measure/run_test_support.h"
#include "measure/summary.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tally::measure {
namespace {

#ifdef TALLY_INSTRUMENTED
constexpr uint64_t kExperiments = 20;
#else
constexpr uint64_t kExperiments = 500;
#endif
constexpr double kCount = kExperiments;

struct Tally {
  uint64_t alarms = 0;           // experiments with a FASTER, SLOWER, SMALLER or LARGER
  uint64_t holm_alarms = 0;      // experiments in which any adjusted p is <= .05
  uint64_t tpot_by_test = 0;     // p of TPOT <= .05
  uint64_t tpot_by_medians = 0;  // the same test on the medians of the runs, requests not matched
  uint64_t ttft_by_test = 0, ttft_by_medians = 0;
  uint64_t tpot_words = 0;    // FASTER, SLOWER or PROBABLY so
  uint64_t ttft_covered = 0;  // the interval holds the truth
};

double p_of_medians(const Arms& arms, Distribution Figures::* of) {
  std::vector<double> values;
  for (size_t i = 0; i < arms.a.size(); ++i)
    values.push_back(
        std::log((figures_of(arms.b[i].requests).*of).median / (figures_of(arms.a[i].requests).*of).median));
  return sign_flip_p(values);
}

Tally simulate(MadePairs how) {
  Tally out;
  how.one_class = true;  // classes get no verdict
  for (uint64_t i = 0; i < kExperiments; ++i) {
    how.seed = 1000 + i;
    const Arms arms = make_pairs(how);
    std::vector<RunPair> pairs;
    for (size_t k = 0; k < how.pairs; ++k) pairs.push_back({&arms.a[k], &arms.b[k]});
    const auto c = compare_runs(pairs, nullptr);
    if (!c) {
      ADD_FAILURE() << c.error().message;
      return out;
    }
    bool alarm = false, holm_alarm = false;
    for (const ComparedMetric& m : c->metrics) {
      if (!m.judged) continue;
      alarm |= m.verdict != Verdict::kSame && !is_undecided(m.verdict);
      holm_alarm |= m.p_holm <= .05;
      if (m.name == "tpot") {
        out.tpot_by_test += m.p <= .05;
        out.tpot_words += m.verdict != Verdict::kSame && m.verdict != Verdict::kUndecided;
      }
      if (m.name == "ttft") {
        out.ttft_by_test += m.p <= .05;
        out.ttft_covered += std::log(*m.low) <= -how.slower_b && -how.slower_b <= std::log(*m.high);
      }
    }
    out.alarms += alarm, out.holm_alarms += holm_alarm;
    out.tpot_by_medians += p_of_medians(arms, &Figures::tpot) <= .05;
    out.ttft_by_medians += p_of_medians(arms, &Figures::ttft_planned) <= .05;
  }
  return out;
}

void record(const char* name, uint64_t count) {
  ::testing::Test::RecordProperty(name, std::to_string(static_cast<double>(count) / kCount));
}

// As often as it says, less three standard errors of so many experiments.
void expect_covered(const Tally& t) {
  const double promised = walsh_confidence(MadePairs{}.pairs);
  EXPECT_GE(static_cast<double>(t.ttft_covered) / kCount,
            promised - 3 * std::sqrt(promised * (1 - promised) / kCount));
}

TEST(CompareSimulation, FalseAlarmsOnIdenticalSystems) {
  const Tally t = simulate({});
  record("alarms", t.alarms), record("holm_alarms", t.holm_alarms), record("tpot_p", t.tpot_by_test);
  record("ttft_covered", t.ttft_covered), record("tpot_words", t.tpot_words);
  // Five metrics together. Three standard errors above 6 % where the runs are few.
  const double slack = kExperiments < 500 ? 3 * std::sqrt(.06 * .94 / kCount) : 0;
  EXPECT_LE(static_cast<double>(t.alarms) / kCount, .06 + slack);
  EXPECT_LE(static_cast<double>(t.holm_alarms) / kCount, .06 + slack);
  EXPECT_LE(static_cast<double>(t.tpot_by_test) / kCount, .06 + 3 * std::sqrt(.06 * .94 / kCount));
  expect_covered(t);
}

TEST(CompareSimulation, EightPairsSeeFivePercent) {
  MadePairs how;
  how.slower_b = std::log(1.05);
  const Tally t = simulate(how);
  record("tpot_p", t.tpot_by_test), record("tpot_medians", t.tpot_by_medians),
      record("ttft_p", t.ttft_by_test);
  record("ttft_medians", t.ttft_by_medians), record("tpot_words", t.tpot_words),
      record("ttft_covered", t.ttft_covered);
  EXPECT_GT(static_cast<double>(t.ttft_by_test) / kCount, .9);
  // Matching requests is what does it: medians of the runs, over the same pairs, see half as much or less.
  EXPECT_LT(static_cast<double>(t.ttft_by_medians) / kCount, .6);
  expect_covered(t);
}

}  // namespace
}  // namespace tally::measure
