#include "measure/workload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace tally::measure {
namespace {

constexpr uint32_t kWords = 300;

Workload build(const WorkloadSpec& spec, uint32_t repetition = 0) {
  auto built = build_workload(spec, repetition, kWords, "");
  EXPECT_TRUE(built.has_value()) << built.error().message;
  return std::move(*built);
}

const PlannedRequest& of_id(const Workload& workload, uint32_t id) {
  return *std::find_if(workload.requests.begin(), workload.requests.end(),
                       [&](auto& r) { return r.id == id; });
}

// class -> ascending lengths of its prompts
std::map<std::string, std::vector<uint32_t>> lengths(const Workload& workload) {
  std::map<std::string, std::vector<uint32_t>> out;
  for (const PlannedRequest& r : workload.requests) out[r.class_name].push_back(r.prompt_tokens());
  for (auto& [name, list] : out) std::sort(list.begin(), list.end());
  return out;
}

TEST(Mix, IsAnExactMultiset) {
  for (const uint32_t n : {1u, 7u, 10u, 200u, 999u}) {
    auto of = lengths(build({.requests = n}));
    EXPECT_EQ(of["short"].size() + of["medium"].size() + of["long"].size(), n);
    EXPECT_LE(std::abs(static_cast<double>(of["short"].size()) - .3 * n), 1) << n;
    EXPECT_LE(std::abs(static_cast<double>(of["medium"].size()) - .5 * n), 1) << n;
  }
  auto of = lengths(build({.requests = 200}));
  EXPECT_EQ(of["short"].size(), 60u);
  EXPECT_EQ(of["medium"].size(), 100u);
  EXPECT_EQ(of["long"].size(), 40u);
  EXPECT_EQ(of["short"].front(), 30u);
  EXPECT_EQ(of["short"].back(), 70u);
  EXPECT_EQ(of["long"].front(), 732u);
  EXPECT_EQ(of["long"].back(), 1668u);
  uint64_t sum = 0;
  for (const uint32_t length : of["medium"]) sum += length;
  EXPECT_EQ(sum, 30'000u);
  for (auto& [name, list] : lengths(build({.requests = 10, .spread = 0})))
    EXPECT_EQ(list.front(), list.back()) << name;
}

TEST(Mix, IsTheSameForASeed) {
  const WorkloadSpec spec{.requests = 40};
  EXPECT_EQ(build(spec).sha256(), build(spec).sha256());
  WorkloadSpec other = spec;
  other.seed = 2;
  EXPECT_NE(build(spec).sha256(), build(other).sha256());
  EXPECT_NE(build(spec).sha256(), build(spec, 1).sha256());
  EXPECT_EQ(lengths(build(spec)), lengths(build(other)));
  // Shuffled, and not the same way twice.
  std::vector<uint32_t> order, again;
  for (const auto& r : build(spec).requests) order.push_back(r.id);
  for (const auto& r : build(spec, 1).requests) again.push_back(r.id);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  EXPECT_NE(order, again);
}

// The same id is the same prompt behind another salt: it pairs, and no cache knows it.
TEST(Mix, SaltsEveryPrompt) {
  const WorkloadSpec spec{.requests = 40};
  const Workload first = build(spec), second = build(spec, 1);
  std::set<std::vector<uint32_t>> salts;
  for (const Workload* w : {&first, &second})
    for (const PlannedRequest& r : w->requests) salts.emplace(r.words.begin(), r.words.begin() + kSaltWords);
  EXPECT_EQ(salts.size(), 80u);
  for (uint32_t id = 0; id < 40; ++id) {
    const auto &a = of_id(first, id).words, &b = of_id(second, id).words;
    ASSERT_EQ(a.size(), b.size());
    EXPECT_TRUE(std::equal(a.begin() + kSaltWords, a.end(), b.begin() + kSaltWords)) << id;
  }
  EXPECT_NE(first.requests[0].cache_salt, second.requests[0].cache_salt);
}

TEST(SharedPrefix, SharesWithinAGroupAndARun) {
  const WorkloadSpec spec{
      .name = "shared-prefix", .requests = 12, .prompt_tokens = 40, .prefix_tokens = 100, .groups = 3};
  const Workload workload = build(spec), next = build(spec, 1);
  EXPECT_TRUE(workload.shares_prefixes);
  const auto prefix = [](const PlannedRequest& r) {
    return std::vector(r.words.begin(), r.words.begin() + 100);
  };
  std::map<std::string, std::set<std::vector<uint32_t>>> prefixes;
  std::set<std::vector<uint32_t>> all, rests;
  for (const PlannedRequest& r : workload.requests) {
    prefixes[r.group].insert(prefix(r)), all.insert(prefix(r));
    rests.emplace(r.words.begin() + 100, r.words.begin() + 108);
  }
  EXPECT_EQ(prefixes.size(), 3u);
  EXPECT_EQ(all.size(), 3u);
  EXPECT_EQ(rests.size(), 12u);
  EXPECT_NE(prefix(of_id(workload, 0)), prefix(of_id(next, 0)));
}

TEST(MultiTurn, RepeatsWhatWasSaid) {
  const Workload workload = build({.name = "multi-turn",
                                   .requests = 7,
                                   .prompt_tokens = 20,
                                   .output_tokens = 10,
                                   .prefix_tokens = 50,
                                   .turns = 3});
  ASSERT_EQ(workload.requests.size(), 7u);
  for (size_t i = 0; i < 7; ++i) {
    const PlannedRequest& r = workload.requests[i];
    const size_t turn = i % 3;
    EXPECT_EQ(r.follows, turn > 0);
    EXPECT_EQ(r.prompt_tokens(), 50 + 20 * (turn + 1) + 10 * turn);
    if (turn == 0) continue;
    const auto& before = workload.requests[i - 1].words;
    EXPECT_TRUE(std::equal(before.begin(), before.end(), r.words.begin()));
  }
}

TEST(Random, RefusesLengthsWithoutRoomForTheSalt) {
  const auto built = build_workload({.name = "random", .prompt_tokens = 10}, 0, kWords, "");
  ASSERT_FALSE(built.has_value());
  EXPECT_NE(built.error().message.find("--prompt-tokens 10"), std::string::npos);
  EXPECT_EQ(build({.name = "random", .prompt_tokens = 8, .spread = 0}).requests[0].prompt_tokens(), 8u);
}

TEST(Words, AreDifferent) {
  const std::set<std::string_view> set(common_words().begin(), common_words().end());
  EXPECT_EQ(set.size(), common_words().size());
  EXPECT_GE(set.size(), 300u);
}

TEST(WorkloadFile, IsRead) {
  const auto w = parse_workload(
      "{\"id\":5,\"class\":\"a\",\"prompt\":\"x y\",\"max_tokens\":3,\"at_s\":0}\n\n"
      "{\"prompt_ids\":[1,2,3],\"max_tokens\":4,\"temperature\":0.5,\"at_s\":1.5,\"group\":\"g\"}\r\n",
      "f");
  ASSERT_TRUE(w.has_value()) << w.error().message;
  ASSERT_EQ(w->requests.size(), 2u);
  EXPECT_TRUE(w->has_times);
  EXPECT_EQ(w->requests[0].id, 5u);
  EXPECT_EQ(w->requests[0].text, "x y");
  EXPECT_EQ(w->requests[1].ids, (std::vector<uint32_t>{1, 2, 3}));
  EXPECT_EQ(w->requests[1].at_s, 1.5);
  EXPECT_EQ(w->requests[0].temperature, 0);
  EXPECT_EQ(w->requests[1].temperature, 0.5);
  Workload warmer = *w;
  warmer.requests[1].temperature = 0.6;
  EXPECT_NE(warmer.sha256(), w->sha256());
  EXPECT_EQ(w->requests[1].group, "g");
  EXPECT_EQ(w->classes["a"]["n"], 1);
}

TEST(WorkloadFile, SaysWhichLineIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "no requests"},
      {"nonsense", "line 1: no JSON"},
      {"[]", "line 1"},
      {"{\"max_tokens\":1}", "prompt, prompt_ids: exactly one"},
      {"{\"prompt\":\"a\",\"prompt_ids\":[1],\"max_tokens\":1}", "exactly one"},
      {"{\"prompt\":\"a\"}", "max_tokens: at least 1"},
      {"{\"prompt\":\"a\",\"max_tokens\":-1}", "max_tokens: -1"},
      {"{\"prompt\":1,\"max_tokens\":1}", "prompt: 1 instead of a string"},
      {"{\"prompt_ids\":[-1],\"max_tokens\":1}", "prompt_ids: -1"},
      {"{\"prompt_ids\":[99999999999],\"max_tokens\":1}", "prompt_ids"},
      {"{\"prompt\":\"a\",\"max_tokens\":1,\"at_s\":\"x\"}", "at_s"},
      {"{\"prompt\":\"a\",\"max_tokens\":1,\"at_s\":2}\n{\"prompt\":\"a\",\"max_tokens\":1,\"at_s\":1}",
       "line 2: at_s: earlier"},
      {"{\"id\":1,\"prompt\":\"a\",\"max_tokens\":1}\n{\"id\":1,\"prompt\":\"a\",\"max_tokens\":1}",
       "line 2: id: 1"},
      {"{\"prompt\":\"x\",\"max_tokens\":1,\"temperature\":2.5}",
       "temperature: 2.5 instead of a number from 0 to 2"},
  };
  for (const auto& [text, what] : cases) {
    const auto w = parse_workload(text, "f");
    ASSERT_FALSE(w.has_value()) << text;
    EXPECT_NE(w.error().message.find(what), std::string::npos) << w.error().message;
  }
}

}  // namespace
}  // namespace tally::measure
