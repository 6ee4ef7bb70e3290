#include "measure/ablate.h"

#include "measure/run_test_support.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

namespace tally::measure {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using StoredRun = Run;  // in a test, Run is gtest's

constexpr const char* kDefaults =
    R"({"kv-type":"int8","batching":"continuous","prefix-cache":"on","attention":"paged"})";

// Four settings, of two values each at most.
base::Result<Flags> resolve(const Flags& flags) {
  Flags out = json::parse(kDefaults).get<Flags>();
  for (const auto& [name, value] : flags) {
    if (!out.contains(name)) return base::Error{base::ErrorCode::kUsage, "--" + name + ": unknown flag"};
    out[name] = value;
  }
  return out;
}

class AblateFileTest : public ::testing::Test {
 protected:
  std::string write(const std::string& text) {
    std::ofstream(path_) << text;
    return path_;
  }
  void TearDown() override { fs::remove(path_); }
  base::Result<AblateDesign> design(const std::string& text) {
    const auto file = load_ablate_file(write(text));
    if (!file) return file.error();
    return ablate_design(*file, resolve);
  }
  // One line that names this file and says `what`.
  void refused(const std::string& text, const std::string& what) {
    const auto out = design(text);
    ASSERT_FALSE(out) << text;
    EXPECT_NE(out.error().message.find(path_), std::string::npos) << out.error().message;
    EXPECT_NE(out.error().message.find(what), std::string::npos) << out.error().message;
  }

 private:
  const std::string path_ =
      ::testing::TempDir() + ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
};

std::vector<std::string> names(const AblateDesign& design) {
  std::vector<std::string> out;
  for (const Arm& arm : design.arms) out.push_back(arm.name);
  return out;
}

std::vector<std::pair<size_t, size_t>> contrasts(const AblateDesign& design) {
  std::vector<std::pair<size_t, size_t>> out;
  for (const Contrast& c : design.contrasts) out.emplace_back(c.from, c.to);
  return out;
}

using Names = std::vector<std::string>;
using Contrasts = std::vector<std::pair<size_t, size_t>>;

TEST_F(AblateFileTest, EachValueAgainstTheBase) {
  const auto d =
      design(R"({"base":{"kv-type":"bf16"},"vary":{"kv-type":["bf16","int8"],"prefix-cache":["on",false]}})");
  ASSERT_TRUE(d) << d.error().message;
  EXPECT_EQ(names(*d), (Names{"base", "kv-type int8", "prefix-cache off"}));
  EXPECT_EQ(contrasts(*d), (Contrasts{{0, 1}, {0, 2}}));
  EXPECT_EQ(d->notes, (Names{"kv-type bf16: the same as base: no arm of its own",
                             "prefix-cache on: the same as base: no arm of its own"}));
  EXPECT_EQ(d->arms[2].flags, (Flags{{"kv-type", "bf16"}, {"prefix-cache", "off"}}));
  EXPECT_EQ(d->arms[2].settings.at("batching"), "continuous");
}

TEST_F(AblateFileTest, LadderAgainstTheStepBeforeAndTheBase) {
  const auto d = design(R"({"base":{"kv-type":"bf16","batching":"static"},
      "ladder":[{"name":"KV","set":{"kv-type":"int8"}},{"set":{"batching":"continuous","prefix-cache":"off"}}],
      "interactions":[["KV","batching continuous, prefix-cache off"]]})");
  ASSERT_TRUE(d) << d.error().message;
  const std::string second = "batching continuous, prefix-cache off";
  EXPECT_EQ(names(*d), (Names{"base", "KV", second, second + " alone"}));
  EXPECT_EQ(contrasts(*d), (Contrasts{{0, 1}, {1, 2}, {0, 2}}));
  ASSERT_EQ(d->interactions.size(), 1u);  // of three arms that are there and one that is not
  EXPECT_EQ(d->interactions[0].first, 1u);
  EXPECT_EQ(d->interactions[0].second, 3u);
  EXPECT_EQ(d->interactions[0].both, 2u);
}

TEST_F(AblateFileTest, WhatIsWrongIsNamedByItsPath) {
  refused("[1]", "instead of an object");
  refused(R"({"vari":{}})", "vari: no such key; did you mean vary?");
  refused(R"({"base":{"kv-type":[]}})", "base.kv-type: [] instead of a text, a number, true or false");
  refused(R"({"vary":{"kv-type":"int8"}})", "vary.kv-type: \"int8\" instead of a list of values");
  refused(R"({"vary":{"kv-type":[null]}})", "vary.kv-type[0]: null instead of");
  refused(R"({"vary":{"kv-typ":["int8"]}})", "vary.kv-typ: --kv-typ: unknown flag");
  refused(R"({"ladder":[{"set":{"kv-type":"bf16"}},{"name":"x"}]})",
          "ladder[1]: {\"name\":\"x\"} instead of");
  refused(R"({"ladder":[{"set":{"kv-type":"int8"}}]})", "ladder[0]: changes nothing");
  refused(R"({"rounds":41,"vary":{"kv-type":["bf16"]}})", "rounds: 41 instead of 1..40");
  refused(R"({"vary":{"kv-type":["int8"]}})", "nothing varies");
  refused(R"({"vary":{"kv-type":["bf16"],"batching":["static"]},"interactions":[["kv-type bf16","x"]]})",
          "interactions[0]: 'x' is no change of vary or ladder");
  refused(R"({"vary":{"kv-type":["bf16","f32"]},"interactions":[["kv-type bf16","kv-type f32"]]})",
          "interactions[0]: both changes set kv-type");
  EXPECT_EQ(load_ablate_file("no-such-file.json").error().code, base::ErrorCode::kNoInput);
}

TEST(Ablate, LawOneSaysWhoMustBeEqual) {
  const Arm base{"base", {}, {{"kv-type", "int8"}, {"attention", "paged"}, {"block-tokens", "64"}}};
  Arm other = base;
  other.settings["block-tokens"] = "16";
  EXPECT_TRUE(must_give_equal_bits(base, other));
  other.settings["attention"] = "standard";
  EXPECT_FALSE(must_give_equal_bits(base, other));
}

TEST(Ablate, RoundsThatCanDecide) {
  EXPECT_EQ(rounds_for(1), 8u);
  EXPECT_EQ(rounds_for(6), 8u);  // 2^-7 x 6 = .047
  EXPECT_EQ(rounds_for(7), 9u);  // 2^-7 x 7 = .055
  EXPECT_EQ(rounds_for(15), 10u);
}

TEST(Ablate, OrdersAreRandomAndFair) {
  std::map<std::vector<size_t>, int> seen;
  for (uint32_t round = 0; round < 600; ++round) ++seen[round_order(3, 7, round)];
  ASSERT_EQ(seen.size(), 6u);
  for (const auto& [order, times] : seen) EXPECT_NEAR(times, 100, 40);
  EXPECT_EQ(round_order(5, 1, 3), round_order(5, 1, 3));
}

// Arms with known effects on a machine that drifts from run to run.
struct FakeArms final : ArmRunner {
  std::vector<double> slower;  // by arm, log of all times
  double noise = .01, drift = .01;
  uint64_t seed = 1;
  int stop_after = -1, invalid_every = 0;
  int calls = 0;
  double machine = 0;
  std::mt19937_64 draw{seed};

  explicit FakeArms(std::vector<double> effects) : slower(std::move(effects)) {}

  base::Result<StoredRun> run(size_t arm, uint32_t round) override {
    ++calls;
    std::normal_distribution<double> normal;
    machine += drift * normal(draw);
    MadeRun how;
    how.prompts_seed = 100 + round, how.noise_seed = draw(), how.one_class = true;
    how.slower = machine + slower[arm] + noise * normal(draw);
    StoredRun out = make_run(how);
    out.head["valid"] = invalid_every == 0 || calls % invalid_every != 0;
    return out;
  }
  bool is_stopped() const override { return stop_after >= 0 && calls >= stop_after; }
  void on_round(uint32_t) override {}
};

// base, A, B, A + B and one that is the base again, each against the base.
AblateDesign five_arms() {
  AblateDesign out;
  for (const char* name : {"base", "A", "B", "A + B", "nothing"}) out.arms.push_back({name, {}, {}});
  for (size_t arm = 1; arm < out.arms.size(); ++arm) out.contrasts.push_back({0, arm});
  out.interactions.push_back({"A", "B", 1, 2, 3});
  return out;
}

Ablation ablate(FakeArms& arms, uint32_t rounds, std::vector<ArmFacts> facts = std::vector<ArmFacts>(5)) {
  std::vector<std::vector<StoredRun>> done;
  EXPECT_TRUE(run_rounds(5, rounds, 1, arms, done));
  auto out = analyse(five_arms(), done, std::move(facts), nullptr);
  EXPECT_TRUE(out) << out.error().message;
  return std::move(*out);
}

const ComparedMetric& judged_metric(const Comparison& c, std::string_view name) {
  const auto at = std::find_if(c.metrics.begin(), c.metrics.end(),
                               [&](const ComparedMetric& m) { return m.judged && m.name == name; });
  EXPECT_NE(at, c.metrics.end());
  return *at;
}

TEST(AblateSimulation, KnownEffectsAndTheirInteraction) {
  // A makes it 20 % slower, B 30 % faster, together 10 % faster than their product.
  FakeArms arms({0, std::log(1.2), -std::log(1.3), std::log(1.2) - std::log(1.3) - std::log(1.1), 0});
  const Ablation a = ablate(arms, 11);
  EXPECT_EQ(arms.calls, 55);
  EXPECT_EQ(a.tests, 20u);
  EXPECT_EQ(judged_metric(a.contrasts[0].comparison, "tpot").verdict, Verdict::kSlower);
  EXPECT_EQ(judged_metric(a.contrasts[1].comparison, "tpot").verdict, Verdict::kFaster);
  EXPECT_NEAR(judged_metric(a.contrasts[0].comparison, "e2e").ratio, 1 / 1.2, .02);
  EXPECT_NEAR(judged_metric(a.contrasts[1].comparison, "output_throughput").ratio, 1.3, .03);
  EXPECT_EQ(judged_metric(a.contrasts[3].comparison, "tpot").verdict, Verdict::kSame);
  // One family: the smallest p of 11 rounds is 2^-10, times the 20 tests.
  EXPECT_NEAR(judged_metric(a.contrasts[0].comparison, "tpot").p_holm, 20. / 1024, 20. / 1024 * .8);
  EXPECT_GT(judged_metric(a.contrasts[0].comparison, "tpot").p_holm, 5. / 1024);
  EXPECT_EQ(a.verdict, Verdict::kSlower);
  ASSERT_EQ(a.interactions.size(), 1u);
  for (const InteractionMetric& m : a.interactions[0].metrics) {
    if (m.name == "peak_memory") continue;
    EXPECT_NEAR(m.ratio, 1.1, .03) << m.name;
    EXPECT_LT(*m.low, m.ratio);
    EXPECT_GT(*m.high, m.ratio);
    EXPECT_NEAR(m.both, m.first * m.second * m.ratio, .03) << m.name;
  }
  EXPECT_EQ(a.figures[0].at("peak_rss_anon_bytes"), 1e9);
  EXPECT_NEAR(a.figures[1].at("tpot_s") / a.figures[0].at("tpot_s"), 1.2, .06);
  const json page = ablation_json(a);
  EXPECT_EQ(page["exit_code"], 1);
  EXPECT_EQ(page["contrasts"][1]["to"], "B");
  EXPECT_EQ(ablation_run(a, arms.run(0, 0).value()).head["valid"], true);
  const std::string svg = forest_svg(a, "a <title>");
  EXPECT_NE(svg.find("a &lt;title>"), std::string::npos);
  EXPECT_NE(svg.find("FASTER"), std::string::npos);
}

TEST(AblateSimulation, IdenticalArmsAreSeldomCalledDifferent) {
#ifdef TALLY_INSTRUMENTED
  constexpr int kExperiments = 3;
#else
  constexpr int kExperiments = 60;
#endif
  int alarms = 0;
  for (int i = 0; i < kExperiments; ++i) {
    FakeArms arms({0, 0, 0, 0, 0});
    arms.draw.seed(static_cast<uint64_t>(i) + 1);
    const Ablation a = ablate(arms, 11);
    bool alarm = false;
    for (const ContrastResult& c : a.contrasts)
      for (const ComparedMetric& m : c.comparison.metrics)
        alarm |= m.judged && m.verdict != Verdict::kSame && !is_undecided(m.verdict);
    alarms += alarm;
  }
  EXPECT_LE(alarms, 4);  // of 60; 6 % are 3.6
}

TEST(Ablate, OtherBitsThanLawOneWantsAreInvalid) {
  std::vector<ArmFacts> facts(5);
  for (ArmFacts& f : facts) f.answers = {{"a", "a1"}, {"b", "b1"}, {}};
  facts[2].answers[1].bits = "b2";
  facts[3].answers[2] = {"only one", "answered"};
  FakeArms arms({0, 0, 0, 0, 0});
  const Ablation a = ablate(arms, 1, std::move(facts));
  EXPECT_EQ(a.contrasts[0].equal_answers, 2u);
  EXPECT_NE(a.contrasts[0].comparison.verdict, Verdict::kInvalid);
  EXPECT_EQ(a.contrasts[1].answers, 2u);
  EXPECT_EQ(a.contrasts[1].equal_answers, 1u);
  EXPECT_EQ(a.contrasts[1].equal_texts, 2u);
  EXPECT_EQ(a.contrasts[1].comparison.verdict, Verdict::kInvalid);
  EXPECT_NE(a.contrasts[2].comparison.verdict, Verdict::kInvalid);
  EXPECT_EQ(a.verdict, Verdict::kInvalid);
  EXPECT_EQ(exit_code(a.verdict), 3);
  const StoredRun stored = ablation_run(a, arms.run(0, 0).value());
  EXPECT_EQ(stored.head["invalid_reasons"][0],
            "B against base: bits of greedy answers: 1 of 2 equal; must be: all equal");
}

TEST(Ablate, StoppedAndSpoiltRounds) {
  std::vector<std::vector<StoredRun>> done;
  FakeArms stopped({0, 0, 0});
  stopped.stop_after = 8;  // in the third round
  ASSERT_TRUE(run_rounds(3, 5, 1, stopped, done));
  EXPECT_EQ(done.size(), 2u);
  EXPECT_EQ(stopped.calls, 8);

  done.clear();
  FakeArms spoilt({0, 0, 0});
  spoilt.invalid_every = 3;  // runs 3, 6 and 9 are made again
  ASSERT_TRUE(run_rounds(3, 2, 1, spoilt, done));
  EXPECT_EQ(spoilt.calls, 8);
  for (const auto& round : done)
    for (const StoredRun& run : round) EXPECT_TRUE(run.head["valid"].get<bool>());
  done.clear();
  FakeArms hopeless({0, 0});
  hopeless.invalid_every = 1;
  ASSERT_TRUE(run_rounds(2, 1, 1, hopeless, done));
  EXPECT_EQ(hopeless.calls, 6);  // three attempts each; the gates tell
}

}  // namespace
}  // namespace tally::measure
