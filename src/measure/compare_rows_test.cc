#include "measure/compare.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tally::measure {
namespace {

using nlohmann::json;
using StoredRun = Run;  // in a test, Run is gtest's

// Decode at two batches and one prefill, `repetitions` times, `faster` as fast, each time off by up to 1 %.
StoredRun bench(double faster, size_t repetitions, uint64_t seed = 1) {
  json rows = json::array();
  uint64_t state = seed;
  for (const int batch : {0, 1, 8}) {
    json seconds = json::array();
    for (size_t i = 0; i < repetitions; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      seconds.push_back((1 + .01 * static_cast<double>(state >> 40) * 0x1p-24) / faster);
    }
    rows.push_back({{"phase", batch == 0 ? "prefill" : "decode"},
                    {"prompt", batch == 0 ? 512 : 0},
                    {"decode", batch == 0 ? 0 : 64},
                    {"batch", std::max(batch, 1)},
                    {"depth", 0},
                    {"depth_blocks", "own"},
                    {"kv_type", "int8"},
                    {"threads", 2},
                    {"tokens_per_second", 64. * faster},
                    {"seconds", std::move(seconds)}});
  }
  StoredRun run;
  run.head = {{"schema", 1},
              {"command", "bench engine"},
              {"status", "complete"},
              {"warnings", json::array()},
              {"model", {{"path_basename", "m.gguf"}}},
              {"settings", {{"step_tokens", 512}}},
              {"results", {{"rows", std::move(rows)}}}};
  return run;
}

base::Result<Comparison> compare(const StoredRun& a, const StoredRun& b) {
  const RunPair pair[] = {{&a, &b}};
  return compare_benches(pair);
}

TEST(CompareRows, RepetitionsOfOnePairAreTheEvidence) {
  const auto c = compare(bench(1, 10), bench(1.2, 10, 7));
  ASSERT_TRUE(c) << c.error().message;
  ASSERT_EQ(c->metrics.size(), 3u);
  EXPECT_EQ(c->metrics[0].name, "prefill");  // one row of its kind
  EXPECT_EQ(c->metrics[2].name, "decode batch 8");
  for (const ComparedMetric& m : c->metrics) {
    EXPECT_NEAR(m.ratio, 1.2, .01);
    EXPECT_EQ(m.verdict, Verdict::kFaster) << m.name;
    EXPECT_EQ(m.unit, "tok/s");
    EXPECT_EQ(m.a, 64);
  }
  EXPECT_EQ(c->verdict, Verdict::kFaster);
  EXPECT_NE(c->warnings.back().find("one run of each"), std::string::npos);
  EXPECT_EQ(compare(bench(1.2, 10), bench(1, 10, 7))->verdict, Verdict::kSlower);
  EXPECT_EQ(compare(bench(1, 10), bench(1, 10, 7))->verdict, Verdict::kSame);
  // Fewer than 6 say nothing, whatever they show.
  EXPECT_EQ(compare(bench(1, 5), bench(2, 5))->verdict, Verdict::kUndecided);
}

TEST(CompareRows, OfSeveralPairsTheRunsAre) {
  std::vector<StoredRun> runs;
  for (uint64_t i = 0; i < 8; ++i) runs.push_back(bench(1, 5, i + 1)), runs.push_back(bench(1.1, 5, i + 100));
  std::vector<RunPair> pairs;
  for (size_t i = 0; i < runs.size(); i += 2) pairs.push_back({&runs[i], &runs[i + 1]});
  const auto c = compare_benches(pairs);
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(c->metrics[1].pairs, 8u);
  EXPECT_EQ(c->metrics[1].verdict, Verdict::kFaster);
  EXPECT_TRUE(c->warnings.empty());
}

TEST(CompareRows, WhatDoesNotMatchIsTold) {
  const StoredRun a = bench(1, 6);
  StoredRun b = a;
  b.head["settings"]["step_tokens"] = 256;
  EXPECT_EQ(compare(a, b)->changes.size(), 1u);
  b.head["results"]["rows"].erase(1);
  EXPECT_EQ(compare(a, b)->metrics.size(), 2u);
  for (json& row : b.head["results"]["rows"]) row["threads"] = 3;
  EXPECT_EQ(compare(a, b).error().message, "no row is in both runs");
  b.head["results"]["rows"][0]["seconds"] = {0};
  EXPECT_NE(compare(a, b).error().message.find("B1: results.rows: seconds: numbers above 0"),
            std::string::npos);
  b.head["results"]["rows"][0] = 7;
  EXPECT_NE(compare(a, b).error().message.find("B1: results.rows: 7 instead of a row"), std::string::npos);
  b = a;
  b.head["model"]["path_basename"] = "other.gguf";
  EXPECT_EQ(compare(a, b)->verdict, Verdict::kInvalid);
  b.head["command"] = "bench load";
  EXPECT_EQ(compare(a, b).error().code, base::ErrorCode::kUsage);
  EXPECT_FALSE(is_bench(b));
  EXPECT_TRUE(is_bench(a));
}

}  // namespace
}  // namespace tally::measure
