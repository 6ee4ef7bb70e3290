#include "measure/compare.h"

#include "base/temp_directory_test_support.h"
#include "measure/run_test_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

namespace tally::measure {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using StoredRun = Run;  // in a test, Run is gtest's

std::vector<RunPair> pairs_of(const Arms& arms) {
  std::vector<RunPair> out;
  for (size_t i = 0; i < arms.a.size(); ++i) out.push_back({&arms.a[i], &arms.b[i]});
  return out;
}

Comparison compare(const Arms& arms, const Noise* noise = nullptr) {
  auto out = compare_runs(pairs_of(arms), noise);
  EXPECT_TRUE(out) << out.error().message;
  return std::move(*out);
}

const ComparedMetric& metric(const Comparison& c, std::string_view name, std::string_view class_name = "") {
  const auto at = std::find_if(c.metrics.begin(), c.metrics.end(), [&](const ComparedMetric& m) {
    return m.name == name && m.class_name == class_name;
  });
  EXPECT_NE(at, c.metrics.end()) << name;
  return *at;
}

TEST(Compare, BetterIsAboveOne) {
  MadePairs how;
  how.slower_b = std::log(1.25), how.arm_noise = .005;
  const Comparison c = compare(make_pairs(how));
  EXPECT_EQ(c.pairs, 8u);
  EXPECT_EQ(c.requests, 480u);
  for (const char* name : {"ttft", "tpot", "e2e", "output_throughput"}) {
    const ComparedMetric& m = metric(c, name);
    EXPECT_NEAR(m.ratio, .8, .02) << name;
    EXPECT_LT(*m.low, m.ratio);
    EXPECT_GT(*m.high, m.ratio);
    EXPECT_EQ(m.verdict, Verdict::kSlower) << name;
    EXPECT_EQ(m.pair_ratios.size(), 8u);
  }
  EXPECT_GT(metric(c, "ttft").b, metric(c, "ttft").a);
  EXPECT_LT(*metric(c, "ttft").cliffs_delta, 0);
  EXPECT_EQ(metric(c, "peak_memory").verdict, Verdict::kSame);
  EXPECT_EQ(metric(c, "peak_memory").ratio, 1);
  EXPECT_FALSE(metric(c, "ttft", "long").judged);
  EXPECT_FALSE(metric(c, "e2e_p99").judged);
  EXPECT_EQ(c.verdict, Verdict::kSlower);
  EXPECT_EQ(exit_code(c), 1);

  how.slower_b = -how.slower_b;
  const Comparison better = compare(make_pairs(how));
  EXPECT_EQ(metric(better, "tpot").verdict, Verdict::kFaster);
  EXPECT_EQ(better.verdict, Verdict::kFaster);
  EXPECT_EQ(exit_code(better), 0);
}

TEST(Compare, EqualIsSame) {
  MadePairs how;
  how.pairs = 16, how.arm_noise = .002, how.request_noise = .01;
  const Comparison c = compare(make_pairs(how));
  EXPECT_EQ(c.verdict, Verdict::kSame) << comparison_json(c).dump(1);
  EXPECT_EQ(exit_code(c), 0);
  EXPECT_TRUE(c.changes.empty());
}

TEST(Compare, OnePairIsUndecided) {
  MadePairs how;
  how.pairs = 1, how.slower_b = 1;
  const Comparison c = compare(make_pairs(how));
  EXPECT_EQ(c.verdict, Verdict::kUndecided);
  EXPECT_EQ(exit_code(c), 2);
  EXPECT_NEAR(metric(c, "ttft").ratio, std::exp(-1), .05);
  EXPECT_FALSE(metric(c, "ttft").low.has_value());
  EXPECT_EQ(metric(c, "ttft").pairs_needed, 7u);  // eight for five metrics
}

TEST(Compare, FivePairsCannotDecide) {
  MadePairs how;
  how.pairs = 5, how.slower_b = 1;
  const Comparison c = compare(make_pairs(how));
  EXPECT_DOUBLE_EQ(metric(c, "ttft").p, .0625);
  EXPECT_EQ(c.verdict, Verdict::kUndecided);
}

TEST(Compare, RequestsAreMatchedById) {
  Arms arms = make_pairs({});
  for (StoredRun& run : arms.b) std::reverse(run.requests.begin(), run.requests.end());
  const Comparison backwards = compare(arms), forwards = compare(make_pairs({}));
  EXPECT_EQ(metric(backwards, "ttft").ratio, metric(forwards, "ttft").ratio);
  // A request that failed in one arm is out of the differences of both.
  arms = make_pairs({});
  arms.a[0].requests[3].outcome = Outcome::kRefused;
  EXPECT_EQ(compare(arms).requests, 479u);
  arms.a[0].requests[4].id = arms.a[0].requests[5].id;
  EXPECT_NE(compare_runs(pairs_of(arms), nullptr).error().message.find("A1: id 5 stands there twice"),
            std::string::npos);
  arms = make_pairs({});
  for (RequestRecord& r : arms.b[2].requests) r.outcome = Outcome::kFailed;
  EXPECT_NE(
      compare_runs(pairs_of(arms), nullptr).error().message.find("pair 3: no request completed in both"),
      std::string::npos);
}

TEST(Compare, OneSettingIsNamed) {
  Arms arms = make_pairs({});
  for (StoredRun& run : arms.b) {
    run.head["settings"]["settings"]["kv-type"]["value"] = "bf16";
    run.head["settings"]["settings"]["port"]["value"] = 9000;  // no variable
  }
  const Comparison c = compare(arms);
  ASSERT_EQ(c.changes.size(), 1u);
  EXPECT_EQ(c.changes[0].name, "kv-type");
  EXPECT_EQ(c.changes[0].a, "int8");
  EXPECT_EQ(c.changes[0].b, "bf16");
  for (StoredRun& run : arms.b) run.head["build_id"] = "77";
  EXPECT_EQ(compare(arms).changes.size(), 2u);
}

struct Spoilt {
  const char* gate;
  void (*spoil)(Run&);
};

TEST(Compare, AnyGateMakesItInvalid) {
  const Spoilt kSpoilt[] = {
      {"B2 complete", [](StoredRun& r) { r.head["status"] = "incomplete"; }},
      {"B2 valid by itself", [](StoredRun& r) { r.head["valid"] = false; }},
      {"B2 valid by itself", [](StoredRun& r) { r.head.erase("valid"); }},
      {"B2 errors", [](StoredRun& r) { r.requests[0].outcome = Outcome::kFailed; }},
      {"B2 length", [](StoredRun& r) { r.requests.resize(5); }},
      {"pair 2: model SHA-256", [](StoredRun& r) { r.head["model"]["sha256"] = "other"; }},
      {"pair 2: workload SHA-256", [](StoredRun& r) { r.head.erase("workload"); }},
  };
  for (const Spoilt& s : kSpoilt) {
    Arms arms = make_pairs({});
    s.spoil(arms.b[1]);
    const Comparison c = compare(arms);
    EXPECT_EQ(c.verdict, Verdict::kInvalid) << s.gate;
    EXPECT_EQ(exit_code(c), 3);
    EXPECT_EQ(metric(c, "ttft").verdict, Verdict::kInvalid);
    for (const Gate& gate : c.gates)
      EXPECT_EQ(gate.passed, gate.what != s.gate) << gate.what << ' ' << gate.value;
  }
}

TEST(Compare, NoiseOfTheMachineIsKept) {
  MadePairs how;
  how.arm_noise = .05;
  const Arms arms = make_pairs(how);
  const Noise noise = noise_of(compare(arms), arms.a[0]);
  EXPECT_EQ(noise.machine, "f00d");
  EXPECT_NEAR(noise.sd.at("tpot"), .05 * std::sqrt(2), .04);
  const json stored = noise_json(noise);
  EXPECT_GT(stored["metrics"]["tpot"]["detectable_ratio_8"],
            stored["metrics"]["tpot"]["detectable_ratio_20"]);
  EXPECT_EQ(noise_path(arms.a[0], "runs/one"), "runs/noise-f00d.json");
  EXPECT_EQ(noise_path(arms.a[0], "runs/one/"), "runs/noise-f00d.json");
  EXPECT_EQ(noise_path(arms.a[0], "one"), "noise-f00d.json");
  // A later comparison on this machine claims nothing below it.
  MadePairs quiet;
  quiet.arm_noise = .002, quiet.slower_b = std::log(1.08);
  const Arms eight_percent = make_pairs(quiet);
  EXPECT_EQ(metric(compare(eight_percent), "tpot").verdict, Verdict::kSlower);
  const Noise loud{"f00d", "mix", 8, {{"tpot", .1}}};
  const Comparison c = compare(eight_percent, &loud);
  EXPECT_EQ(metric(c, "tpot").verdict, Verdict::kUndecided);
  EXPECT_GT(*metric(c, "tpot").detectable, 1.1);
  const Noise elsewhere{"beef", "mix", 8, {{"tpot", .1}}};
  const Comparison other = compare(eight_percent, &elsewhere);
  EXPECT_EQ(metric(other, "tpot").verdict, Verdict::kSlower);
  EXPECT_EQ(other.warnings.size(), 1u);
}

TEST(Compare, JsonHasEveryMetric) {
  const json j = comparison_json(compare(make_pairs({})));
  EXPECT_EQ(j["pairs"], 8);
  EXPECT_EQ(j["metrics"][0]["metric"], "ttft");
  EXPECT_TRUE(j["metrics"][0]["ci95"][0].is_number());
  EXPECT_TRUE(j["metrics"][0]["verdict"].is_string());
  for (const json& m : j["metrics"]) EXPECT_EQ(m.contains("verdict"), m["judged"].get<bool>());
  EXPECT_FALSE(j["gates"].empty());
}

class PairPathsTest : public ::testing::Test {
 protected:
  std::string make(const std::string& path, const std::string& label) {
    fs::create_directories(home_ / path);
    std::ofstream(home_ / path / "run.json") << json{{"schema", 1}, {"label", label}};
    return (home_ / path).string();
  }
  std::string at(const std::string& path) const { return (home_ / path).string(); }
  base::Result<PairPaths> pair(std::vector<std::string> arguments) { return pair_paths(arguments); }

 private:
  const base::TempDirectory temp_;
  const fs::path home_ = temp_.path();
};

using Pairs = std::vector<std::pair<std::string, std::string>>;

TEST_F(PairPathsTest, RunsAndDirectories) {
  const std::string a1 = make("a/1", "x"), a2 = make("a/2", "y"), b1 = make("b/1", "y"),
                    b2 = make("b/2", "x");
  EXPECT_EQ(pair({a1, b1})->pairs, (Pairs{{a1, b1}}));
  EXPECT_EQ(pair({a1, b1, a2, b2})->pairs, (Pairs{{a1, b1}, {a2, b2}}));
  EXPECT_EQ(pair({at("a"), at("b")})->pairs, (Pairs{{a1, b2}, {a2, b1}}));  // by label
  make("b/2", "z");
  EXPECT_EQ(pair({at("a"), at("b")})->pairs, (Pairs{{a1, b1}, {a2, b2}}));  // labels differ: by time
  EXPECT_FALSE(pair({at("a"), at("b")})->same);
  const std::string a3 = make("a/3", "x"), a4 = make("a/4", "x");
  const auto same = pair({at("a"), at("a") + "/"});
  ASSERT_TRUE(same) << same.error().message;
  EXPECT_TRUE(same->same);
  EXPECT_EQ(same->pairs, (Pairs{{a1, a2}, {a3, a4}}));
}

TEST_F(PairPathsTest, NoiseIsAFile) {
  const Noise noise{"f00d", "mix", 8, {{"tpot", 1. / 3}}};
  ASSERT_TRUE(store_noise(noise, at("noise.json")));
  ASSERT_TRUE(store_noise(noise, at("noise.json")));  // again: replaced
  const auto back = load_noise(at("noise.json"));
  ASSERT_TRUE(back) << back.error().message;
  EXPECT_EQ(back->sd, noise.sd);
  EXPECT_EQ(back->workload, "mix");
  EXPECT_EQ(load_noise(at("none.json")).error().code, base::ErrorCode::kNoInput);
  for (const char* bad :
       {"[]", "{}", R"({"machine":"a","workload":"b","pairs":2,"metrics":{"x":{"sd_log":-1}}})"}) {
    std::ofstream(at("bad.json")) << bad;
    EXPECT_NE(load_noise(at("bad.json")).error().message.find("bad.json: "), std::string::npos) << bad;
  }
}

TEST_F(PairPathsTest, SaysWhatDoesNotFit) {
  const std::string a1 = make("a/1", "x"), b1 = make("b/1", "y");
  make("b/2", "y");
  const auto message = [&](std::vector<std::string> arguments) {
    const auto out = pair_paths(arguments);
    return out ? std::string("no error") : out.error().message;
  };
  EXPECT_NE(message({a1}).find("1 arguments"), std::string::npos);
  EXPECT_NE(message({a1, b1, a1}).find("3 arguments"), std::string::npos);
  EXPECT_NE(message({a1, a1}).find("one run against itself"), std::string::npos);
  EXPECT_NE(message({at("a"), at("b")}).find("there must be as many"), std::string::npos);
  EXPECT_NE(message({at("b"), at("b")}).find("2 runs; an even number from 4"), std::string::npos);
  EXPECT_NE(message({a1, at("nowhere")}).find("nowhere: no stored run"), std::string::npos);
  EXPECT_NE(message({at("x"), at("y")}).find("neither a stored run"), std::string::npos);
  EXPECT_NE(message({a1, b1, b1, b1}).find("the same run"), std::string::npos);
}

}  // namespace
}  // namespace tally::measure
