// Scoring through a KV cache on a tiny real model: the same bits as one pass, forks, faults that must show.
#include "engine/score.h"

#include "engine/hand_test_support.h"
#include "engine/memory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

namespace tally::engine {
namespace {

std::vector<TokenId> ids_of(size_t n, uint32_t seed) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    ids.push_back(TokenId{static_cast<int32_t>((seed >> 10) % 1024)});
  }
  return ids;
}

using Row = std::vector<float>;
bool same_bits(const std::vector<Row>& a, const std::vector<Row>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i].size() != b[i].size() || std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(float)) != 0)
      return false;
  return true;
}

class Score : public ::testing::Test {
 protected:
  void SetUp() override {
    ScoreRequest request;
    request.model_path = kModel;
    request.context = 256;
    request.threads = 2;
    auto loaded = Scorer::load(request, accounts);
    ASSERT_TRUE(loaded) << loaded.error().message;
    scorer = std::move(loaded).value();
  }

  std::unique_ptr<Lane> lane(const std::string& type, LaneFault fault = {}) {
    auto made = scorer->make_lane({type, 4, 4 * 256, fault});
    EXPECT_TRUE(made) << (made ? "" : made.error().message);
    return std::move(made).value();
  }

  // Appends in pieces; every row of logits.
  static std::vector<Row> feed(Lane& l, uint32_t sequence, std::span<const TokenId> ids, size_t piece) {
    std::vector<Row> out;
    for (size_t at = 0; at < ids.size(); at += piece) {
      const Lane::Rows rows{sequence, ids.subspan(at, std::min(piece, ids.size() - at)), true};
      const auto done = l.feed({&rows, 1});
      EXPECT_TRUE(done) << (done ? "" : done.error().message);
      for (size_t i = 0; i < rows.tokens.size(); ++i)
        out.emplace_back(l.logits(i).begin(), l.logits(i).end());
    }
    return out;
  }

  base::Accounts accounts{uint64_t{512} << 20};
  std::unique_ptr<Scorer> scorer;
};

TEST_F(Score, EveryCodecGivesTheSameBitsHoweverTheRowsCome) {
  const std::vector<TokenId> ids = ids_of(100, 3);
  std::vector<std::vector<Row>> by_codec;
  for (const std::string& type : kv_type_names()) {
    const auto l = lane(type);
    const std::vector<Row> whole = feed(*l, 0, ids, 64), small = feed(*l, 1, ids, 7);
    EXPECT_EQ(whole.size(), ids.size());
    EXPECT_TRUE(same_bits(whole, small)) << type;
    for (const auto& others : by_codec) EXPECT_FALSE(same_bits(whole, others)) << type;
    by_codec.push_back(whole);
    EXPECT_EQ(l->kv_types().front(), type);
  }
}

TEST_F(Score, TruncatedAndForkedSequencesGoOnAsIfTheyWereNew) {
  const auto l = lane("int8");
  const std::vector<TokenId> base = ids_of(45, 1), left = ids_of(40, 2), right = ids_of(40, 5);
  feed(*l, 0, base, 64);
  l->fork(0, 1), l->fork(0, 2);
  const std::vector<Row> a = feed(*l, 1, left, 16), b = feed(*l, 2, right, 64);
  EXPECT_EQ(l->length(0), 45u);
  EXPECT_EQ(l->length(1), 85u);
  feed(*l, 3, base, 64);
  EXPECT_TRUE(same_bits(feed(*l, 3, left, 64), a));
  l->truncate(3, 45);
  EXPECT_TRUE(same_bits(feed(*l, 3, right, 64), b));
  EXPECT_TRUE(same_bits(feed(*l, 0, right, 64), b)) << "a fork wrote into what it shared";
  // Blocks come back: the pool holds 4 x 256 tokens, and this asks for many times that.
  for (int round = 0; round < 20; ++round) {
    for (uint32_t s = 1; s < 4; ++s) l->fork(0, s), feed(*l, s, left, 64);
    l->truncate(0, 45);
    feed(*l, 0, right, 64);
  }
}

TEST_F(Score, ReadsAreCountedAsTheyAre) {
  const auto l = lane("f32");
  const uint64_t layers = l->kv_types().size();
  feed(*l, 0, ids_of(64, 1), 64);
  EXPECT_EQ(l->reads().positions, layers * 64 * 65 / 2);
  EXPECT_EQ(l->reads().earlier_positions, 0u);
  EXPECT_EQ(l->reads().bytes, 64 * l->bytes_per_token());
  feed(*l, 0, ids_of(10, 1), 10);
  EXPECT_EQ(l->reads().positions, layers * 74 * 75 / 2);
  EXPECT_EQ(l->reads().earlier_positions, layers * 10 * 64);
  EXPECT_EQ(l->reads().bytes, (64 + 74) * l->bytes_per_token());
  EXPECT_LT(lane("int8")->bytes_per_token(), l->bytes_per_token() / 2);
}

TEST_F(Score, NoiseInStoredValuesShowsFromTheNextPassOn) {
  const std::vector<TokenId> ids = ids_of(96, 9);
  const auto sound = lane("f32"), noisy = lane("f32", {.noise_bits = 2}),
             fine = lane("f32", {.noise_bits = 12});
  const std::vector<Row> want = feed(*sound, 0, ids, 64), got = feed(*noisy, 0, ids, 64),
                         close = feed(*fine, 0, ids, 64);
  EXPECT_EQ(got[63], want[63]) << "the first pass wrote what it read";
  double far = 0, near = 0;
  for (size_t v = 0; v < want[95].size(); ++v) {
    far += std::abs(got[95][v] - want[95][v]);
    near += std::abs(close[95][v] - want[95][v]);
  }
  EXPECT_GT(near, 0);
  EXPECT_GT(far, 10 * near) << "the size of the noise is what was asked for";
}

TEST_F(Score, SpoiltBlocksShowUnlessTheCodecIsNeverReadBack) {
  const std::vector<TokenId> ids = ids_of(100, 4);
  for (const std::string& type : kv_type_names()) {
    for (const bool never : {false, true}) {
      const auto l = lane(type, {.is_never_read_back = never});
      const auto all = std::span(ids);
      feed(*l, 0, all.first(90), 64);
      const std::vector<Row> before = feed(*l, 0, all.subspan(90), 10);
      l->truncate(0, 90);
      l->spoil(0);
      EXPECT_EQ(same_bits(feed(*l, 0, all.subspan(90), 10), before), never) << type;
    }
  }
}

TEST_F(Score, GreedyTextIsTheEngines) {
  LoadRequest request;
  request.model_path = kModel;
  request.settings.memory_bytes = uint64_t{512} << 20;
  request.settings.max_model_len = 256, request.settings.kv_type = "int8";
  request.settings.max_seqs = 2, request.settings.threads = 2;
  request.settings.kv_pool_bytes = uint64_t{16} << 20;
  base::Accounts own(request.settings.memory_bytes);
  auto engine = load_engine(request, own).value();
  const std::vector<TokenId> prompt = ids_of(70, 8);
  Request ask;
  ask.prompt = prompt, ask.params.temperature = 0, ask.max_tokens = 24;
  const Submitted submitted = engine->submit(ask);
  ASSERT_EQ(submitted.streams.size(), 1u);
  engine->stop(INT64_MAX);
  ASSERT_TRUE(engine->run());
  std::vector<TokenId> want;
  for (TokenEvent event; submitted.streams[0]->next(event);) want.push_back(event.id);

  const auto l = lane("int8");
  feed(*l, 2, std::span(prompt).first(69), 64);
  feed(*l, 1, ids_of(30, 2), 64);
  const Continuation starts[] = {{1, TokenId{5}}, {2, prompt.back()}};
  const auto texts = continue_greedily(*scorer, *l, starts, 24, {}).value();
  EXPECT_EQ(texts[1], want);
  EXPECT_EQ(texts[0].size(), 24u);
  // An end id ends a text and is its last token.
  const TokenId end = want[5];
  const auto stops = std::find(want.begin(), want.end(), end) - want.begin() + 1;
  l->truncate(2, 69);
  const auto cut = continue_greedily(*scorer, *l, {&starts[1], 1}, 24, {&end, 1}).value();
  EXPECT_EQ(cut[0], std::vector<TokenId>(want.begin(), want.begin() + stops));
}

TEST_F(Score, RefusesWhatCannotBe) {
  const auto codec = scorer->make_lane({"q4", 1, 64, {}});
  ASSERT_FALSE(codec);
  EXPECT_EQ(codec.error().code, base::ErrorCode::kConfig);
  EXPECT_NE(codec.error().message.find("int8"), std::string::npos) << codec.error().message;
  EXPECT_EQ(scorer->make_lane({"f32", 1, uint64_t{1} << 24, {}}).error().code, base::ErrorCode::kUnavailable);
  base::Accounts other(uint64_t{512} << 20);
  ScoreRequest request;
  request.model_path = kModel, request.context = 1u << 30;
  EXPECT_EQ(Scorer::load(request, other).error().code, base::ErrorCode::kConfig);
  request.context = 64, request.model_path = "README.md";
  EXPECT_EQ(Scorer::load(request, other).error().code, base::ErrorCode::kBadData);
  EXPECT_EQ(model_context("no-such-file.gguf").error().code, base::ErrorCode::kNoInput);
}

}  // namespace
}  // namespace tally::engine
