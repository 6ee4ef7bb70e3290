// Detokenizer on small vocabularies: hidden tokens, leading spaces, prompt tails, stop strings across tokens.

#include "text/detokenizer.h"

#include "base/utf8.h"
#include "text/test_model.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace tally::text {
namespace {

const Tokenizer& spm() {
  static const auto tokenizer =
      TestModel::spm({{"▁hello", 1, 1}, {"▁world", 1, 1}, {"lo", 1, 1}, {"<br>", 4, 0}, {"<pad>", 3, 0}})
          .load();
  return *tokenizer;
}
constexpr int32_t kHello = 259, kWorld = 260, kLo = 261, kBr = 262, kPad = 263;
constexpr int32_t byte_id(int byte) { return 3 + byte; }

std::string run(const DetokenizerOptions& options, const std::vector<int32_t>& ids, size_t* shown = nullptr) {
  Detokenizer detokenizer(spm(), options);
  std::string out;
  for (const int32_t id : ids) out += detokenizer.feed(TokenId{id});
  out += detokenizer.finish();
  if (shown != nullptr) *shown = detokenizer.tokens_shown();
  return out;
}

TEST(Detokenizer, LeadingSpace) {
  EXPECT_EQ(run({}, {kHello, kWorld}), " hello world");
  DetokenizerOptions first;
  first.prompt_is_empty = true;
  EXPECT_EQ(run(first, {kHello, kWorld}), "hello world");
  EXPECT_EQ(run(first, {kPad, kHello}), "hello");
  EXPECT_EQ(run(first, {kLo, kHello}), "lo hello");
}

TEST(Detokenizer, HiddenTokensGiveNoTextAndMatchNoStop) {
  DetokenizerOptions options;
  options.stop = {"<pad>", "<br>"};
  size_t shown = 0;
  EXPECT_EQ(run(options, {kHello, kPad, kWorld, kBr, kLo}, &shown), " hello world");
  EXPECT_EQ(shown, 3u);
  options.skip_special = false;
  EXPECT_EQ(run(options, {kHello, kPad, kWorld}, &shown), " hello");
  EXPECT_EQ(shown, 1u);
}

TEST(Detokenizer, ACharacterThatThePromptBeganIsNotLeaked) {
  DetokenizerOptions options;
  options.prompt_tail = {TokenId{kHello}, TokenId{byte_id(0xE4)}};
  EXPECT_EQ(run(options, {byte_id(0xB8), byte_id(0xAD), kLo}), "lo");
  EXPECT_EQ(run(options, {kLo}), "lo");
  options.prompt_tail = {TokenId{byte_id(0xC3)}, TokenId{byte_id(0xA8)}};
  EXPECT_EQ(run(options, {byte_id(0xC3), byte_id(0xA8)}), "è");
  EXPECT_EQ(run({}, {byte_id(0xC3)}), "\uFFFD");
}

TEST(Detokenizer, StopAcrossTokens) {
  DetokenizerOptions options;
  options.stop = {"o w", "rld"};
  Detokenizer detokenizer(spm(), options);
  EXPECT_EQ(detokenizer.feed(TokenId{kHello}), " hell");
  EXPECT_EQ(detokenizer.feed(TokenId{kWorld}), "");
  EXPECT_EQ(detokenizer.stopped(), 0u);
  EXPECT_EQ(detokenizer.feed(TokenId{kLo}), "");
  EXPECT_EQ(detokenizer.finish(), "");
  EXPECT_EQ(detokenizer.tokens_shown(), 1u);
  options.include_stop = true;
  EXPECT_EQ(run(options, {kHello, kWorld}), " hello w");
}

RC_GTEST_PROP(Detokenizer, StreamIsTheWholeDecodedAtOnce, ()) {
  const auto some = rc::gen::inRange<int32_t>(0, static_cast<int32_t>(spm().vocab_size()));
  const auto half =
      rc::gen::map(rc::gen::elementOf(std::vector<int>{0xE4, 0xB8, 0xAD, 0xC3, 0xA8, 0xF0, 0x9F}), byte_id);
  const auto ids = *rc::gen::container<std::vector<int32_t>>(rc::gen::oneOf(some, half));
  std::vector<TokenId> tokens;
  for (const int32_t id : ids) tokens.push_back(TokenId{id});
  for (const bool skip : {false, true}) {
    DetokenizerOptions options;
    options.skip_special = skip;
    options.prompt_is_empty = true;
    RC_ASSERT(run(options, ids) == spm().decode(tokens, skip));
    Detokenizer detokenizer(spm(), options);
    for (const TokenId id : tokens)
      RC_ASSERT(base::utf8_find_invalid(detokenizer.feed(id)) == std::string::npos);
  }
}

TEST(DetokenizerDeathTest, LimitsAreChecked) {
  DetokenizerOptions options;
  options.stop.assign(kStopStringsMax + 1, "x");
  EXPECT_DEATH(run(options, {}), "too many stop strings");
  options.stop.assign(1, "");
  EXPECT_DEATH(run(options, {}), "length of a stop string");
  options.stop.assign(1, std::string(kStopBytesMax + 1, 'x'));
  EXPECT_DEATH(run(options, {}), "length of a stop string");
}

}  // namespace
}  // namespace tally::text
