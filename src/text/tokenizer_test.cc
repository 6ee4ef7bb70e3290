// Tokenizer on small vocabularies: the rules of special tokens, spans, prefixes and bytes, and files that are
// wrong.

#include "text/tokenizer.h"

#include "text/special_tokens.h"
#include "text/test_model.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <chrono>
#include <thread>

namespace tally::text {
namespace {

using Ids = std::vector<int32_t>;

// "hello" merges step by step; ids 256.. ; <s> is control, <u> user-defined.
TestModel small_bpe(std::string_view pre = "gpt-2") {
  TestModel m = TestModel::bpe(
      pre, {{"he"}, {"ll"}, {"hell"}, {"hello"}, {"Ġhello"}, {"<s>", 3}, {"<u>", 4}, {"<s>x", 3}},
      {"h e", "l l", "he ll", "hell o", "Ġ hello"});
  m.writer.set_uint("tokenizer.ggml.bos_token_id", 261);
  m.writer.set_uint("tokenizer.ggml.eos_token_id", 261);
  return m;
}

std::string error_of(TestModel m) {
  const auto tokenizer = m.load();
  EXPECT_FALSE(tokenizer);
  if (tokenizer) return "";
  EXPECT_EQ(tokenizer.error().code, base::ErrorCode::kBadData);
  EXPECT_EQ(tokenizer.error().message.find('\n'), std::string::npos);
  return tokenizer.error().message;
}

TEST(Bpe, MergesByRank) {
  const auto t = small_bpe().load();
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(numbers(t->encode("hello hello", false, false)), (Ids{259, 260}));
  EXPECT_EQ(numbers(t->encode("help", false, false)), (Ids{256, 'l', 'p'}));
  EXPECT_EQ(numbers(t->encode("", true, true)), Ids{});
  EXPECT_EQ(t->bytes(TokenId{260}), " hello");
  EXPECT_EQ(t->piece(TokenId{260}), "Ġhello");
  EXPECT_EQ(t->model(), "gpt2");
  EXPECT_EQ(t->pre_tokenizer(), "gpt-2");
}

TEST(Bpe, IgnoreMergesTakesAWholePieceThatIsAToken) {
  const std::vector<TestToken> more = {{"ab"}, {"abc"}};
  const auto merging = TestModel::bpe("qwen2", more, {"a b"}).load();
  const auto ignoring = TestModel::bpe("llama-bpe", more, {"a b"}).load();
  ASSERT_TRUE(merging && ignoring);
  EXPECT_EQ(numbers(merging->encode("abc", false, false)), (Ids{256, 'c'}));
  EXPECT_EQ(numbers(ignoring->encode("abc", false, false)), (Ids{257}));
  EXPECT_EQ(numbers(ignoring->encode("abcd", false, false)), (Ids{256, 'c', 'd'}));
}

// T3.
TEST(Specials, TextOfAUserNeverBecomesAControlToken) {
  auto t = small_bpe().load();
  ASSERT_TRUE(t);
  EXPECT_EQ(numbers(t->encode("a<s>b", false, true)), (Ids{'a', 261, 'b'}));
  EXPECT_EQ(numbers(t->encode("a<s>b", false, false)), (Ids{'a', '<', 's', '>', 'b'}));
  EXPECT_EQ(numbers(t->encode("a<u>b", false, false)), (Ids{'a', 262, 'b'}));
  EXPECT_EQ(numbers(t->encode("<s>xy", false, true)), (Ids{263, 'y'}));  // the longer of two

  // Neither by the merges of a file, nor as a whole piece.
  auto sly = TestModel::bpe("llama-bpe", {{"ab", 3}, {"c", 3}}, {"a b"});
  sly.tokens['c'].text = "another spelling";
  sly.writer.set_uint("tokenizer.ggml.unknown_token_id", 'z');
  sly.writer.set_bool("tokenizer.ggml.add_bos_token", false);
  const auto s = sly.load();
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_EQ(numbers(s->encode("ab", false, false)), (Ids{'a', 'b'}));
  EXPECT_EQ(numbers(s->encode("c", false, false)), (Ids{'z'}));
  ASSERT_EQ(s->warnings().size(), 1u);
  EXPECT_EQ(s->warnings()[0], "1 of 1 merges were dropped: a part or the result is no text token");
}

TEST(Specials, SpansAreSplitPointsAndKeepTheirTrust) {
  auto m = small_bpe();
  m.writer.set_bool("tokenizer.ggml.add_bos_token", true);
  const auto t = m.load();
  ASSERT_TRUE(t);
  const auto spans = [&](const std::vector<TextSpan>& list) { return numbers(t->encode_spans(list, true)); };
  EXPECT_EQ(spans({{"<s>", true}, {"<s>", false}}), (Ids{261, '<', 's', '>'}));
  // A control token is not made of the end of one span and the beginning of the next.
  EXPECT_EQ(spans({{"<", false}, {"s>", true}}), (Ids{261, '<', 's', '>'}));
  EXPECT_EQ(spans({{"he", true}, {"llo", true}}), (Ids{261, 256, 257, 'o'}));
  EXPECT_EQ(spans({}), (Ids{261}));
  EXPECT_EQ(numbers(t->encode_spans({}, false)), Ids{});
  EXPECT_EQ(numbers(t->encode("<s>a", true, true)), (Ids{261, 261, 'a'}));  // encode does as it is told
}

TEST(Specials, Phi3EatsTheWhitespaceBehindThem) {
  auto m = small_bpe();
  m.writer.set_string("general.name", "My Phi-3 mini");
  const auto t = m.load();
  ASSERT_TRUE(t);
  EXPECT_EQ(numbers(t->encode("<u> \n a", false, true)), (Ids{262, 'a'}));
  EXPECT_EQ(numbers(t->encode("<s> a", false, true)), (Ids{261, ' ', 'a'}));
}

TEST(Specials, TheTokenThatAWholeTextIs) {
  auto m = small_bpe();
  m.writer.set_string("general.name", "My Phi-3 mini");
  m.tokens.push_back({std::string(kSpecialBytesMax, 'y'), 3});
  m.tokens.push_back({std::string(kSpecialBytesMax + 1, 'z'), 3});
  const auto t = m.load();
  ASSERT_TRUE(t);
  const auto id_of = [&](const std::string& text) {
    const auto id = t->special_token(text);
    return id ? raw(*id) : -1;
  };
  EXPECT_EQ(id_of("<s>"), 261);
  EXPECT_EQ(id_of("<u>"), 262);
  EXPECT_EQ(id_of("<s>x"), 263);
  EXPECT_EQ(id_of(std::string(kSpecialBytesMax, 'y')), static_cast<int32_t>(m.tokens.size()) - 2);
  for (const std::string& text :
       {std::string(), std::string("a"), std::string("he"), std::string("<s><s>"), std::string("a<s>"),
        std::string("<s>xy"), std::string("<s"), std::string(kSpecialBytesMax + 1, 'z'),
        std::string(size_t{1} << 20, 'a')})
    EXPECT_EQ(id_of(text), -1) << text.substr(0, 10);
  // What encode swallows is text all the same.
  EXPECT_EQ(numbers(t->encode("<u> \n", false, true)), Ids{262});
  EXPECT_EQ(id_of("<u> \n"), -1);
}

TEST(Roles, DefaultsAndKeys) {
  const auto plain = small_bpe().load();
  const auto llama = small_bpe("llama-bpe").load();
  ASSERT_TRUE(plain && llama);
  EXPECT_FALSE(plain->adds_bos());
  EXPECT_TRUE(llama->adds_bos());
  EXPECT_EQ(numbers(llama->encode("a", true, false)), (Ids{261, 'a'}));

  auto m = small_bpe("llama-bpe");
  m.writer.set_bool("tokenizer.ggml.add_bos_token", false);
  m.writer.set_bool("tokenizer.ggml.add_eos_token", true);
  const std::vector<int32_t> suppress = {7, 3, 7};
  m.writer.set_ints("tokenizer.ggml.suppress_tokens", suppress);
  m.writer.set_string("tokenizer.chat_template", "{{ x }}");
  const auto t = m.load();
  ASSERT_TRUE(t);
  EXPECT_EQ(numbers(t->encode("a", true, false)), (Ids{'a', 261}));
  EXPECT_EQ(std::vector<TokenId>(t->suppressed().begin(), t->suppressed().end()),
            (std::vector<TokenId>{TokenId{3}, TokenId{7}}));
  EXPECT_EQ(t->chat_template(), "{{ x }}");
  EXPECT_FALSE(plain->chat_template());

  auto missing = TestModel::bpe("llama-bpe", {}, {});
  missing.writer.set_uint("tokenizer.ggml.eos_token_id", 0xFFFFFFFF);
  const auto without = missing.load();
  ASSERT_TRUE(without) << without.error().message;
  EXPECT_FALSE(without->eos());
  EXPECT_FALSE(without->adds_bos());
  EXPECT_EQ(without->warnings()[0], "tokenizer.ggml.bos_token_id is missing, so no bos is added");
}

TEST(Roles, EndOfGeneration) {
  const auto eog = [](const std::vector<TestToken>& more) {
    auto m = TestModel::bpe("gpt-2", more, {});
    const auto t = m.load();
    EXPECT_TRUE(t);
    Ids ids;
    for (const TokenId id : t->eog()) ids.push_back(raw(id) - 256);
    return ids;
  };
  EXPECT_EQ(eog({{"<|im_end|>", 3}, {"plain"}, {"<|eot_id|>", 1}}), (Ids{0, 2}));
  EXPECT_EQ(eog({{"<|end|>", 3}}), (Ids{0}));
  EXPECT_EQ(eog({{"<|end|>", 3}, {"<|return|>", 3}, {"<|call|>", 3}}), (Ids{1, 2}));
  EXPECT_EQ(eog({{"<|end|>", 3}, {"<|calls|>", 3}, {"<|flush|>", 3}}), (Ids{1, 2}));
  EXPECT_EQ(eog({{"</s>", 3}, {"<|tool_response>", 3}}), (Ids{1}));
  EXPECT_EQ(eog({{"</s>", 3}}), (Ids{0}));
  EXPECT_EQ(eog({{"</s>", 4}}), Ids{});  // an HTML tag, as Gemma has it

  auto m = TestModel::bpe("gpt-2", {{"<unused1>", 3}, {"e", 3}, {"fim", 3}}, {});
  m.tokens['e'].text = "another spelling";
  m.writer.set_uint("tokenizer.ggml.eot_token_id", 256);
  m.writer.set_uint("tokenizer.ggml.eos_token_id", 257);
  m.writer.set_uint("tokenizer.ggml.fim_pad_token_id", 258);
  const auto t = m.load();
  ASSERT_TRUE(t);
  EXPECT_EQ(std::vector<TokenId>(t->eog().begin(), t->eog().end()),
            (std::vector<TokenId>{TokenId{257}, TokenId{258}}));

  auto oss = TestModel::bpe("gpt-2", {{"<|return|>", 3}, {"<|call|>", 3}, {"<|channel|>", 3}}, {});
  const auto rendered = oss.load();
  ASSERT_TRUE(rendered);
  EXPECT_EQ(rendered->kind(TokenId{258}), TokenKind::kUserDefined);
  EXPECT_EQ(rendered->bytes(TokenId{258}), "<|channel|>");
  EXPECT_EQ(rendered->bytes(TokenId{256}), "");
  EXPECT_EQ(rendered->bytes_with_special(TokenId{256}), "<|return|>");
}

// Ids of small_spm: 259 ▁, 260 a, 261 b, 262 ab, 263 ▁ab, 264 é, 265 <html>.
TestModel small_spm() {
  return TestModel::spm({{"▁", 1, -1},
                         {"a", 1, -2},
                         {"b", 1, -3},
                         {"ab", 1, 5},
                         {"▁ab", 1, 4},
                         {"é", 1, -4},
                         {"<html>", 4, 0},
                         {"ba", 1, 5}});
}

TEST(Spm, PrefixScoresAndBytes) {
  const auto t = small_spm().load();
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(numbers(t->encode("ab", false, false)), (Ids{263}));
  EXPECT_EQ(numbers(t->encode("ab", true, false)), (Ids{1, 263}));
  EXPECT_EQ(numbers(t->encode("aba", false, false)), (Ids{263, 260}));  // equal scores: leftmost
  EXPECT_EQ(numbers(t->encode("é", false, false)), (Ids{259, 264}));
  EXPECT_EQ(numbers(t->encode("è", false, false)), (Ids{259, 3 + 0xC3, 3 + 0xA8}));
  EXPECT_EQ(numbers(t->encode("\xFF", false, false)), (Ids{259, 3 + 0xFF}));
  EXPECT_EQ(numbers(t->encode(std::string("\0", 1), false, false)), (Ids{259, 3}));
  EXPECT_EQ(numbers(t->encode("", false, false)), Ids{});
  // A fragment behind a special token gets a space too, one behind text does not.
  EXPECT_EQ(numbers(t->encode("ab<html>ab", false, false)), (Ids{263, 265, 263}));
  EXPECT_EQ(numbers(t->encode("<s>ab</s>", false, true)), (Ids{1, 263, 2}));
  const std::vector<TextSpan> spans = {{"ab", true}, {"ab", false}};
  EXPECT_EQ(numbers(t->encode_spans(spans, true)), (Ids{1, 263, 262}));
  EXPECT_EQ(t->pre_tokenizer(), "");
}

TEST(Spm, DecodeDropsTheSpaceThatEncodePut) {
  const auto t = small_spm().load();
  ASSERT_TRUE(t);
  const auto decode = [&](const std::string& text) { return t->decode(*t->encode(text, true, false), true); };
  EXPECT_EQ(decode("ab ab"), "ab ab");
  EXPECT_EQ(decode(" ab"), " ab");
  EXPECT_EQ(decode("è"), "è");
  EXPECT_EQ(t->decode(std::vector<TokenId>{TokenId{3 + 0xC3}, TokenId{263}}, true), "\uFFFD ab");
  EXPECT_EQ(t->decode(std::vector<TokenId>{TokenId{1}, TokenId{263}}, false), "<s> ab");
  EXPECT_EQ(t->bytes(TokenId{0}), "");

  auto m = small_spm();
  m.writer.set_bool("tokenizer.ggml.add_space_prefix", false);
  const auto plain = m.load();
  ASSERT_TRUE(plain);
  EXPECT_FALSE(plain->adds_space_prefix());
  EXPECT_EQ(numbers(plain->encode("ab ab", false, false)), (Ids{262, 263}));
  EXPECT_EQ(plain->decode(std::vector<TokenId>{TokenId{263}}, true), " ab");
}

TEST(Spm, RemoveExtraWhitespaces) {
  auto m = small_spm();
  m.writer.set_bool("tokenizer.ggml.remove_extra_whitespaces", true);
  const auto t = m.load();
  ASSERT_TRUE(t);
  EXPECT_EQ(numbers(t->encode("  ab   ab ", false, false)), (Ids{263, 263}));
}

// T7.
TEST(Spm, AMissingByteIsTheUnknownToken) {
  auto m = small_spm();
  m.tokens[3 + 0xC3].text = "gone", m.tokens[3 + 0xC3].kind = 1;
  const auto t = m.load();
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(numbers(t->encode("è", false, false)), (Ids{259, 0, 3 + 0xA8}));
}

TEST(Spm, NeitherControlNorByteNorUnusedTokensAreMadeOfText) {
  auto m = small_spm();
  m.tokens.push_back({"abab", 5, 100});
  m.tokens.push_back({"bb", 3, 100});
  const auto t = m.load();
  ASSERT_TRUE(t);
  EXPECT_EQ(numbers(t->encode("abab", false, false)), (Ids{263, 262}));
  EXPECT_EQ(numbers(t->encode("bb", false, false)), (Ids{259, 261, 261}));
  for (const int32_t id : numbers(t->encode("<0x41>", false, true))) EXPECT_NE(id, 3 + 0x41);
}

TEST(Spm, CuttingChangesNothing) {
  // Pieces that hold a space inside: "a▁b" must be found although words are cut at spaces.
  auto m = small_spm();
  m.tokens.push_back({"a▁", 1, 6});
  m.tokens.push_back({"a▁b", 1, 7});
  const auto t = m.load();
  ASSERT_TRUE(t);
  const int32_t joined = static_cast<int32_t>(m.tokens.size()) - 1;
  EXPECT_EQ(numbers(t->encode("a b", false, false)), (Ids{259, joined}));
}

// T4, T5. Pieces that are no UTF-8 come back byte for byte; NUL is a character as any other.
TEST(Tokenizer, StrangeBytesAreKept) {
  auto m = small_spm();
  m.tokens.push_back({"\xFF\xFE", 4, 0});
  m.tokens.push_back({"a\xC3", 1, 9});
  const auto spm = m.load();
  const auto bpe = small_bpe().load();
  ASSERT_TRUE(spm && bpe);
  const auto round_trip = [](const Tokenizer& t, const std::string& text) {
    std::string out;
    for (const int32_t id : numbers(t.encode(text, false, false))) out += t.bytes(TokenId{id});
    return out;
  };
  for (const std::string& text : {std::string("a\0b", 3), std::string("\0", 1), std::string("a\xC3"),
                                  std::string("a\xFF\xFE\xC3\xA8"), std::string("\xED\xA0\x80")}) {
    std::string expected = " " + text;  // a prefix before each fragment that follows a special token
    if (const size_t at = expected.find("\xFF\xFE"); at != std::string::npos) expected.insert(at + 2, " ");
    EXPECT_EQ(round_trip(*spm, text), expected);
    EXPECT_EQ(round_trip(*bpe, text), text);
  }
  EXPECT_EQ(numbers(spm->encode("a\xC3", false, false)).back(), static_cast<int32_t>(m.tokens.size()) - 1);
}

// T6. Special tokens that are empty, or the beginning of another.
TEST(Specials, EmptyOnesAndPrefixesOfOthers) {
  auto t = TestModel::bpe("gpt-2", {{"", 3}, {"<a", 4}, {"<a><", 4}, {"<a>", 4}}, {}).load();
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(numbers(t->encode("<a><a<a><", false, true)), (Ids{258, 'a', 258}));
  EXPECT_EQ(numbers(t->encode("<a>b<a", false, false)), (Ids{259, 'b', 257}));
  EXPECT_EQ(numbers(t->encode("", false, true)), Ids{});
}

// Ids from 259: ▁ a b ab ▁a \n \n\n é <html>; no token for è.
TestModel small_raw_bpe(std::string_view model, std::string_view pre) {
  const TestModel spm =
      TestModel::spm({{"▁"}, {"a"}, {"b"}, {"ab"}, {"▁a"}, {"\n"}, {"\n\n"}, {"é"}, {"<html>", 4}});
  TestModel m;
  m.tokens = spm.tokens;
  m.with_scores = false;
  m.writer.set_string("tokenizer.ggml.model", model);
  m.writer.set_string("tokenizer.ggml.pre", pre);
  m.writer.set_uint("tokenizer.ggml.bos_token_id", 1);
  m.writer.set_uint("tokenizer.ggml.unknown_token_id", 0);
  m.writer.set_strings("tokenizer.ggml.merges", std::vector<std::string>{"▁ a", "a b"});
  return m;
}

TEST(RawBpe, MergesCharactersByRankWithinLines) {
  const auto t = small_raw_bpe("gemma4", "default").load();
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(t->model(), "gemma4");
  EXPECT_EQ(t->pre_tokenizer(), "gemma4");
  EXPECT_TRUE(t->adds_bos());
  EXPECT_FALSE(t->adds_space_prefix());
  EXPECT_EQ(numbers(t->encode("ab ab", false, false)), (Ids{262, 263, 261}));
  EXPECT_EQ(numbers(t->encode("ab", true, false)), (Ids{1, 262}));
  EXPECT_EQ(numbers(t->encode("é è", false, false)), (Ids{266, 259, 3 + 0xC3, 3 + 0xA8}));
  // Two newlines are one token although no merge makes it; three are not a token.
  EXPECT_EQ(numbers(t->encode("a\n\nb\n\n\n", false, false)), (Ids{260, 265, 261, 264, 264, 264}));
  EXPECT_EQ(numbers(t->encode("a<html> \xFF", false, true)), (Ids{260, 267, 259, 3 + 0xFF}));
  EXPECT_EQ(t->decode(*t->encode("ab  è\n", false, false), true), "ab  è\n");
  EXPECT_TRUE(t->warnings().empty());

  // The same by its pre-tokenizer alone; here newlines merge only by the merges.
  const auto s = small_raw_bpe("gpt2", "sarvam-moe").load();
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_FALSE(s->adds_bos());
  EXPECT_EQ(numbers(s->encode("ab ab\n\n", false, false)), (Ids{262, 263, 261, 264, 264}));
}

// G19, G20, G21.
TEST(Files, WrongOnesAreRefusedWithTheKey) {
  const auto has = [](const std::string& message, std::string_view part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  auto m = small_bpe();
  m.with_tokens = false;
  has(error_of(m), "tokenizer.ggml.tokens is missing");

  m = small_spm();
  m.with_scores = false;
  has(error_of(m), "tokenizer.ggml.scores is missing");

  m = small_bpe();
  m.with_kinds = false;
  const std::vector<int32_t> few = {1, 1};
  m.writer.set_ints("tokenizer.ggml.token_type", few);
  has(error_of(m), "tokenizer.ggml.token_type has 2 entries, tokenizer.ggml.tokens 264");
  has(error_of(m), "byte ");

  m = small_spm();
  m.with_scores = false;
  const std::vector<std::string> words = {"1"};
  m.writer.set_strings("tokenizer.ggml.scores", words);
  has(error_of(m), "tokenizer.ggml.scores");

  m = small_spm();
  m.with_scores = false;
  const std::vector<float> one = {1.0f};
  m.writer.set_floats("tokenizer.ggml.scores", one);
  has(error_of(m), "tokenizer.ggml.scores has 1 entries");

  m = small_bpe();
  m.tokens[5].kind = 7;
  has(error_of(m), "tokenizer.ggml.token_type[5] is 7");

  m = small_bpe();
  m.tokens[6].text = m.tokens[5].text;
  has(error_of(m), "is both token 5 and token 6");

  m = small_spm();
  m.tokens[4].text = "<0xag>";
  has(error_of(m), "tokenizer.ggml.tokens[4] is a byte token");

  for (const uint32_t id : {264u, 0x80000000u, 0xFFFFFFFEu}) {
    m = small_bpe();
    m.writer.set_uint("tokenizer.ggml.seperator_token_id", id);
    has(error_of(m), "tokenizer.ggml.seperator_token_id is " + std::to_string(id));
  }
  m = small_bpe();
  const std::vector<int32_t> far = {264};
  m.writer.set_ints("tokenizer.ggml.suppress_tokens", far);
  has(error_of(m), "tokenizer.ggml.suppress_tokens holds 264");

  has(error_of(small_bpe("kimi-k2")), "tokenizer.ggml.pre is \"kimi-k2\"");
  for (const std::string entry : {"nothing", "a ", "a"}) {
    has(error_of(TestModel::bpe("gpt-2", {{"ab"}}, {"a b", entry})), "tokenizer.ggml.merges[1]");
  }

  TestModel other;
  other.writer.set_string("tokenizer.ggml.model", "bert");
  has(error_of(other), "tokenizer.ggml.model is \"bert\"");
  EXPECT_NE(error_of(TestModel()).find("tokenizer.ggml.model"), std::string::npos);
}

TEST(Files, OddOnesLoadWithAWarning) {
  auto m = small_bpe("");
  const auto t = m.load();
  ASSERT_TRUE(t) << t.error().message;
  EXPECT_EQ(t->pre_tokenizer(), "default");
  ASSERT_EQ(t->warnings().size(), 1u);
  EXPECT_NE(t->warnings()[0].find("tokenizer.ggml.pre is missing"), std::string::npos);

  // A merge of three parts, or of pieces that are no tokens: dropped.
  const auto dropped = TestModel::bpe("gpt-2", {{"ab"}}, {"a b c", "x y", "a b", "a b"}).load();
  ASSERT_TRUE(dropped);
  EXPECT_EQ(numbers(dropped->encode("ab", false, false)), (Ids{256}));
  EXPECT_NE(dropped->warnings()[0].find("2 of 4 merges"), std::string::npos);

  // One token only; an empty text; a piece that is no UTF-8.
  auto tiny = TestModel::bpe("gpt-2", {}, {});
  tiny.tokens = {{"a"}};
  const auto one = tiny.load();
  ASSERT_TRUE(one) << one.error().message;
  EXPECT_EQ(one->vocab_size(), 1u);
  EXPECT_EQ(numbers(one->encode("aa", true, true)), (Ids{0, 0}));
  EXPECT_FALSE(one->encode("b", true, true));  // no token, no unknown token: refused, not dropped
  EXPECT_TRUE(one->contains(0));
  EXPECT_FALSE(one->contains(1));
  EXPECT_FALSE(one->contains(-1));
  EXPECT_FALSE(one->contains(int64_t{1} << 32));

  auto strange = TestModel::bpe("gpt-2", {{"", 1}, {"\xFF\xFE", 4}}, {});
  const auto s = strange.load();
  ASSERT_TRUE(s) << s.error().message;
  EXPECT_EQ(s->piece(TokenId{256}), "[EMPTY_256]");
  EXPECT_EQ(s->bytes(TokenId{257}), "\xFF\xFE");
  EXPECT_EQ(numbers(s->encode("\xFF\xFE", false, false)), (Ids{257}));

  TestModel none;
  none.writer.set_string("tokenizer.ggml.model", "gpt2");
  none.writer.set_string("tokenizer.ggml.pre", "gpt-2");
  EXPECT_FALSE(none.load());  // no tokens at all
}

RC_GTEST_PROP(Tokenizer, BytesComeBack, (const std::string& bytes)) {
  static const auto bpe = small_bpe("llama-bpe").load();
  static const auto spm = small_spm().load();
  RC_ASSERT(bool{bpe} && bool{spm});
  for (const bool parse_special : {false, true}) {
    const auto of_bpe = bpe->encode(bytes, true, parse_special);
    const auto of_spm = spm->encode(bytes, true, parse_special);
    RC_ASSERT(bool{of_bpe} && bool{of_spm});
    std::string out;
    for (const TokenId id : *of_bpe) out += bpe->bytes(id);
    RC_ASSERT(out == bytes);
    out.clear();
    for (const TokenId id : *of_spm) out += spm->bytes(id);
    RC_ASSERT(out == (bytes.empty() ? "" : " " + bytes));
  }
}

// The cache fills while the same texts are encoded again, from several threads.
TEST(Tokenizer, CacheAndThreadsChangeNothing) {
  const auto t = small_bpe().load();
  const auto fresh = small_bpe().load();
  ASSERT_TRUE(t && fresh);
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) {
    texts.push_back("hello hell " + std::to_string(i * 7919) + " he<u>llo");
  }
  std::vector<Ids> expected;
  for (const std::string& text : texts) expected.push_back(numbers(fresh->encode(text, true, true)));
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t k = 0; k < wrong.size(); ++k) {
    threads.emplace_back([&, k] {
      for (size_t i = 0; i < 2 * texts.size(); ++i) {
        const size_t which = (i * (k + 1)) % texts.size();
        const auto ids = t->encode(texts[which], true, true);
        Ids got;
        for (const TokenId id : *ids) got.push_back(raw(id));
        wrong[k] += got != expected[which];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace tally::text
