// Long texts: what a matcher forgets, and that nobody notices.
#include "sample/constraint_test_support.h"

#include <algorithm>
#include <random>
#include <vector>

namespace tally::sample {
namespace {

using Kind = ConstraintSpec::Kind;

// Texts that go on for as long as one likes.
struct Endless {
  Kind kind;
  std::string text, first, more;
};

std::vector<Endless> endless() {
  return {
      {Kind::kRegex, "a*", "", "a"},
      {Kind::kRegex, "([a-z]+[0-9]{1,3} ?)*", "", "ab12 c"},
      {Kind::kJsonObject, "", "{\"a\":{\"list\":[", "{\"b\":\"text\",\"c\":[1,2,{\"d\":null}]},"},
      {Kind::kJsonSchema,
       R"({"type":"array","items":{"type":"object","properties":{"n":{"type":"integer"}}}})", "[",
       "{\"n\":12},"},
      {Kind::kJsonSchema, R"({"type":"string"})", "\"", "text \\n"},
      {Kind::kGrammar, "root ::= \"a\" root | \"b\"", "", "a"},
      {Kind::kGrammar,
       "root ::= list*\nlist ::= item (\",\" item)* \";\"\nitem ::= [a-c]+ | \"(\" list \")\"", "",
       "a,(b,c;),cc;"},
      {Kind::kJsonSchema,
       R"({"type":"array","items":{"type":"array","items":{"type":"string","minLength":2,"maxLength":4},"maxItems":3}})",
       "[", "[\"abc\",\"de\"],"},
      {Kind::kGrammar, "root ::= (part \";\")*\npart[max_chars=5] ::= [a-c]+", "", "abc;"},
      {Kind::kGrammar, "root ::= (part \";\")*\npart[max_tokens=5] ::= [a-c]+", "", "abca;"},
      {Kind::kGrammar, "root ::= (part \";\")*\npart[capture=\"x\"] ::= [a-c]+", "", "abca;"},
      {Kind::kStructuralTag,
       R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<t"],"tags":[{"type":"tag","begin":"<t>",)"
       R"("content":{"type":"json_schema","json_schema":{"type":"integer"}},"end":"</t>"}]}})",
       "text ", "more <t>12</t> "},
  };
}

void append(std::vector<TokenId>& tokens, std::string_view text) {
  for (const char c : text) tokens.push_back(byte_token(c));
}

// What a matcher holds does not grow with the text: neither while it goes on, nor where a sequence that was
// preempted is followed anew; and what it has forgotten changes nothing.
TEST(Constraint, ALongTextIsFollowedInBoundedMemory) {
  ConstraintCompiler compiler(vocabulary(), {}, {});
  for (const Endless& row : endless()) {
    const auto constraint = compiled(compiler, row.kind, row.text);
    ASSERT_NE(constraint, nullptr);
    ConstraintMatcher matcher(constraint);
    std::vector<TokenId> tokens;
    append(tokens, row.first);
    constexpr size_t kTokens = 16'000, kLooks = 4;
    for (size_t look = 1; look <= kLooks; ++look) {
      while (tokens.size() < kTokens * look / kLooks) {
        for (const char c : row.more) {
          tokens.push_back(byte_token(c));
          ASSERT_TRUE(matcher.follow(tokens)) << row.text << " after " << tokens.size();
        }
        const size_t own = matcher.bytes() - tokens.size() * ConstraintMatcher::token_bytes();
        ASSERT_LT(static_cast<int64_t>(own), int64_t{200} << 10) << row.text << " after " << tokens.size();
      }
      ConstraintMatcher anew(constraint);
      ASSERT_TRUE(anew.follow(tokens)) << row.text;
      ASSERT_TRUE(std::equal(anew.allowed().begin(), anew.allowed().end(), matcher.allowed().begin()))
          << row.text;
      ASSERT_EQ(anew.may_end(), matcher.may_end()) << row.text;
    }
  }
}

// One that forgets after each token says what one says that never does: any token, forward and back.
TEST(Constraint, ForgettingChangesNothing) {
  ConstraintLimits brief, lasting;
  brief.forget_bytes = 0;
  lasting.forget_bytes = lasting.matcher_bytes = size_t{1} << 30;
  ConstraintCompiler forgetful(vocabulary(), brief, {}), faithful(vocabulary(), lasting, {});
  std::mt19937 random(11);
  for (const Endless& row : endless()) {
    ConstraintMatcher one(compiled(forgetful, row.kind, row.text));
    ConstraintMatcher other(compiled(faithful, row.kind, row.text));
    std::vector<TokenId> tokens;
    size_t longest = 0;
    append(tokens, row.first + row.more);
    for (int round = 0; round < 400; ++round) {
      const bool any = one.follow(tokens);
      ASSERT_EQ(any, other.follow(tokens)) << row.text;
      ASSERT_TRUE(std::equal(one.allowed().begin(), one.allowed().end(), other.allowed().begin()))
          << row.text << " after " << tokens.size();
      ASSERT_EQ(one.may_end(), other.may_end()) << row.text;
      std::vector<int32_t> open;
      for (size_t id = 2; id < vocabulary().bytes.size(); ++id)
        if (is_set(one.allowed(), id)) open.push_back(static_cast<int32_t>(id));
      const size_t back = open.empty() || random() % 50 == 0 ? 1 + random() % 24 : 0;
      tokens.resize(tokens.size() - std::min(back, tokens.size()));
      if (back == 0) tokens.push_back(TokenId{open[random() % open.size()]});
      longest = std::max(longest, tokens.size());
    }
    EXPECT_GT(longest, 2u) << row.text;
  }
}

// What the rest of the text depends on can be more than a matcher may hold: parts inside parts.
TEST(Constraint, AMatcherThatIsFullIsDead) {
  ConstraintLimits limits;
  limits.matcher_bytes = size_t{128} << 10;
  ConstraintCompiler compiler(vocabulary(), limits, {});
  const auto constraint = compiled(compiler, Kind::kGrammar, "root ::= \"(\" root \")\" | \"a\"");
  ASSERT_NE(constraint, nullptr);
  ConstraintMatcher matcher(constraint);
  std::vector<TokenId> tokens;
  while (tokens.size() < 20'000 && matcher.follow(tokens)) tokens.push_back(byte_token('('));
  EXPECT_GT(tokens.size(), 300u);
  EXPECT_LT(tokens.size(), 20'000u);
  EXPECT_TRUE(matcher.is_full());
  EXPECT_FALSE(matcher.follow({}));  // for good: where it stands is not known
  EXPECT_LT(matcher.bytes(), limits.matcher_bytes + tokens.size() * ConstraintMatcher::token_bytes());
}

}  // namespace
}  // namespace tally::sample
