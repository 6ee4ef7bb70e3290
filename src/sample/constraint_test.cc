#include "sample/constraint.h"

#include "base/clock.h"
#include "sample/constraint_meter.h"
#include "sample/constraint_test_support.h"
#include "sample/sampler.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fstream>
#include <new>
#include <random>
#include <set>
#include <string>
#include <thread>

namespace tally::sample {
namespace {

using testing::HasSubstr;
using Kind = ConstraintSpec::Kind;

#ifdef TALLY_INSTRUMENTED
constexpr int64_t kSoonUs = 20'000'000;
#else
constexpr int64_t kSoonUs = 2'000'000;
#endif

// What a mask must be, by its definition: token after token, their bytes one by one.
class ByBytes {
 public:
  explicit ByBytes(std::shared_ptr<const Constraint> constraint) : constraint_(std::move(constraint)) {}

  bool lives(const std::string& text) {
    std::vector<TokenId> bytes;
    ConstraintMatcher matcher(constraint_);
    for (const char byte : text) {
      if (!matcher.follow(bytes) || !is_set(matcher.allowed(), static_cast<size_t>(raw(byte_token(byte)))))
        return false;
      bytes.push_back(byte_token(byte));
    }
    return true;
  }

 private:
  const std::shared_ptr<const Constraint> constraint_;
};

struct Walk {
  std::vector<TokenId> tokens;
  std::string text;
  bool ended = false;
};

// Takes any token that is allowed, until the end or `most` tokens.
Walk walk(ConstraintMatcher& matcher, std::mt19937& random, size_t most) {
  Walk out;
  while (out.tokens.size() < most) {
    EXPECT_TRUE(matcher.follow(out.tokens)) << out.text;
    std::vector<size_t> ids;
    for (size_t id = 0; id < vocabulary().bytes.size(); ++id)
      if (is_set(matcher.allowed(), id)) ids.push_back(id);
    if (ids.empty()) break;
    const size_t id = ids[random() % ids.size()];
    EXPECT_NE(id, static_cast<size_t>(kControlPiece));
    EXPECT_EQ(is_set(matcher.allowed(), kEndPiece), matcher.may_end());
    out.ended = id == kEndPiece;
    if (out.ended) break;
    out.tokens.push_back(TokenId{static_cast<int32_t>(id)});
    out.text += vocabulary().bytes[id];
  }
  return out;
}

// Independent of XGrammar: a language of a few texts.
TEST(Constraint, MaskOfAFiniteLanguageIsWhatItsTextsSay) {
  ConstraintCompiler compiler(vocabulary(), {}, {});
  const std::vector<std::string> texts = {"cat",      "cat dog",     "c\"a\\t",     "do",
                                          "dog\nend", "caf\xC3\xA9", "caf\xC3\xA8", "\xF0\x9F\x98\x80!",
                                          "abababc",  "ab"};
  for (const ConstraintSpec& spec :
       {choice_of(texts),
        ConstraintSpec{Kind::kRegex,
                       "cat|cat dog|c\"a\\\\t|do|dog\\nend|caf\xC3\xA9|caf\xC3\xA8|\xF0\x9F\x98\x80!|"
                       "(ab){3}c|ab"}}) {
    const auto constraint = compiled(compiler, spec.kind, spec.text);
    ASSERT_NE(constraint, nullptr);
    const auto lives = [&](const std::string& text) {
      return std::any_of(texts.begin(), texts.end(),
                         [&](const std::string& t) { return t.starts_with(text); });
    };
    std::mt19937 random(1);
    std::set<std::string> seen;
    for (int round = 0; round < 300; ++round) {
      ConstraintMatcher matcher(constraint);
      std::vector<TokenId> tokens;
      std::string text;
      for (;;) {
        ASSERT_TRUE(matcher.follow(tokens));
        std::vector<size_t> ids;
        for (size_t id = 0; id < vocabulary().bytes.size(); ++id) {
          const std::string& bytes = vocabulary().bytes[id];
          const bool end = std::find(texts.begin(), texts.end(), text) != texts.end();
          const bool wanted = id == kEndPiece ? end : !bytes.empty() && lives(text + bytes);
          ASSERT_EQ(is_set(matcher.allowed(), id), wanted)
              << "after \"" << text << "\", token " << id << " " << bytes;
          if (wanted) ids.push_back(id);
        }
        const size_t id = ids[random() % ids.size()];
        if (id == kEndPiece) break;
        tokens.push_back(TokenId{static_cast<int32_t>(id)});
        text += vocabulary().bytes[id];
      }
      seen.insert(text);
    }
    EXPECT_EQ(seen.size(), texts.size());
  }
}

constexpr const char* kPerson =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":6},"age":{"type":"integer","minimum":0,"maximum":150},)"
    R"("tags":{"type":"array","items":{"enum":["red","green"]},"maxItems":2}},"required":["name","age"]})";

TEST(Constraint, MaskOfAGrammarIsWhatItsBytesSay) {
  ConstraintCompiler compiler(vocabulary(), {}, {});
  const std::pair<Kind, std::string> specs[] = {
      {Kind::kJsonSchema, kPerson},
      {Kind::kJsonObject, ""},
      {Kind::kRegex, "[0-9]{2,4}-(a|bb)+"},
      {Kind::kGrammar, "root ::= \"(\" root \")\" | [a-c]+ | \"\xC3\xA9\""},
      {Kind::kStructuralTag,
       R"({"type":"structural_tag","format":{"type":"tag","begin":"<a>","content":{"type":"json_schema","json_schema":{"type":"integer"}},"end":"</a>"}})"}};
  for (const auto& [kind, text] : specs) {
    const auto constraint = compiled(compiler, kind, text);
    ASSERT_NE(constraint, nullptr);
    ByBytes oracle(constraint);
    std::mt19937 random(7);
    for (int round = 0; round < 3; ++round) {
      ConstraintMatcher matcher(constraint);
      const Walk walked = walk(matcher, random, 12);
      for (size_t n = 0; n <= walked.tokens.size(); ++n) {
        ASSERT_TRUE(matcher.follow(std::span(walked.tokens).first(n)));
        std::string before;
        for (size_t i = 0; i < n; ++i)
          before += vocabulary().bytes[static_cast<size_t>(raw(walked.tokens[i]))];
        for (size_t id = 2; id < vocabulary().bytes.size(); id += 1 + random() % 5)
          ASSERT_EQ(is_set(matcher.allowed(), id), oracle.lives(before + vocabulary().bytes[id]))
              << text << " after \"" << before << "\", token " << id << " \"" << vocabulary().bytes[id]
              << '"';
      }
    }
  }
}

// Texts of a constraint, at random.
std::vector<std::vector<TokenId>> random_ways(const std::shared_ptr<const Constraint>& constraint,
                                              std::mt19937& random, int count) {
  std::vector<std::vector<TokenId>> ways;
  for (int i = 0; i < count; ++i) {
    ConstraintMatcher matcher(constraint);
    ways.push_back(walk(matcher, random, 30).tokens);
  }
  return ways;
}

// Beams and forks: a matcher that goes back and elsewhere says what a fresh one says.
TEST(Constraint, GoingBackIsAsGoingAnew) {
  ConstraintCompiler compiler(vocabulary(), {}, {});
  const auto constraint = compiled(compiler, Kind::kJsonSchema, kPerson);
  ASSERT_NE(constraint, nullptr);
  std::mt19937 random(3);
  const std::vector<std::vector<TokenId>> ways = random_ways(constraint, random, 12);
  ConstraintMatcher one(constraint);
  for (int round = 0; round < 60; ++round) {
    const std::vector<TokenId>& way = ways[random() % ways.size()];
    const auto part = std::span(way).first(random() % (way.size() + 1));
    ConstraintMatcher fresh(constraint);
    ASSERT_EQ(one.follow(part), fresh.follow(part));
    ASSERT_TRUE(std::equal(one.allowed().begin(), one.allowed().end(), fresh.allowed().begin()));
    ASSERT_EQ(one.may_end(), fresh.may_end());
  }
}

// Drafts are as good as generated tokens, wherever one ends and the other begins.
TEST(Constraint, FollowsDraftsBehindTheGenerated) {
  ConstraintCompiler compiler(vocabulary(), {}, {});
  const auto constraint = compiled(compiler, Kind::kJsonSchema, kPerson);
  ASSERT_NE(constraint, nullptr);
  std::mt19937 random(5);
  const std::vector<std::vector<TokenId>> ways = random_ways(constraint, random, 8);
  ConstraintMatcher one(constraint);
  for (int round = 0; round < 100; ++round) {
    // Of two ways, so that drafts are often wrong.
    const auto &way = ways[random() % ways.size()], &other = ways[random() % ways.size()];
    const auto generated = std::span(way).first(random() % (way.size() + 1));
    const auto rest = std::span(round % 3 == 0 ? other : way);
    const size_t begin = std::min(generated.size(), rest.size());
    const auto drafts = rest.subspan(begin, random() % (rest.size() - begin + 1));
    std::vector<TokenId> all(generated.begin(), generated.end());
    all.insert(all.end(), drafts.begin(), drafts.end());
    ConstraintMatcher fresh(constraint);
    ASSERT_EQ(one.follow(generated, {}, drafts), fresh.follow(all)) << round;
    ASSERT_TRUE(std::ranges::equal(one.allowed(), fresh.allowed())) << round;
    ASSERT_EQ(one.may_end(), fresh.may_end()) << round;
  }
}

TEST(Constraint, TellsTheTextThatMustCome) {
  ConstraintCompiler compiler(vocabulary(), {}, {});
  const auto constraint = compiled(compiler, Kind::kRegex, "(yes|no), I am certain[.!]");
  ASSERT_NE(constraint, nullptr);
  ConstraintMatcher matcher(constraint);
  std::array<TokenId, 64> into{};
  EXPECT_EQ(matcher.forced({}, into), 0u);  // yes or no
  std::vector<TokenId> text = {byte_token('n')};
  const size_t count = matcher.forced(text, into);
  ASSERT_GT(count, 0u);
  EXPECT_EQ(matcher.forced(text, std::span(into).first(1)), 1u);
  // All of it may come, one after the other, and behind it two may.
  text.insert(text.end(), into.begin(), into.begin() + static_cast<ptrdiff_t>(count));
  ASSERT_TRUE(matcher.follow(text));
  EXPECT_EQ(matcher.forced({}, into), 0u);  // back again
  EXPECT_EQ(matcher.forced(std::vector{byte_token('x')}, into), 0u);
  ConstraintMatcher fresh(constraint);
  ASSERT_TRUE(fresh.follow(text));
  ASSERT_TRUE(matcher.follow(text));
  EXPECT_TRUE(std::ranges::equal(matcher.allowed(), fresh.allowed()));
}

TEST(Constraint, WhatLookedAheadForTooLongIsDead) {
  ConstraintLimits limits;
  limits.ahead_us = -1;
  ConstraintCompiler compiler(vocabulary(), limits, {});
  const auto constraint = compiled(compiler, Kind::kRegex, "no, I am certain[.!]");
  ASSERT_NE(constraint, nullptr);
  ConstraintMatcher matcher(constraint), other(constraint);
  std::array<TokenId, 64> into{};
  const std::vector<TokenId> text = {byte_token('n')};
  EXPECT_EQ(matcher.forced(text, into), 0u);
  EXPECT_TRUE(matcher.is_dead());
  EXPECT_FALSE(matcher.is_full());
  EXPECT_FALSE(matcher.follow(text));
  EXPECT_TRUE(other.follow(text)) << "who does not look has all the time of a step";
}

TEST(Constraint, BlanksInJsonComeToAnEnd) {
  ConstraintCompiler compiler(vocabulary(), {}, {});
  const auto json = compiled(compiler, Kind::kJsonSchema,
                             R"({"type":"object","properties":{"a":{"type":"string"}},"required":["a"]})");
  const auto spaces = compiled(compiler, Kind::kJsonSchema, "{\"const\":\"" + std::string(60, ' ') + "\"}");
  const auto regex = compiled(compiler, Kind::kRegex, " *x");
  const auto most_blanks = [](const std::shared_ptr<const Constraint>& constraint, std::string before) {
    ConstraintMatcher matcher(constraint);
    std::vector<TokenId> tokens;
    for (const char c : before) tokens.push_back(byte_token(c));
    int count = 0;
    for (; count < 100 && matcher.follow(tokens); ++count) {
      if (!is_set(matcher.allowed(), static_cast<size_t>(raw(byte_token(' '))))) break;
      tokens.push_back(byte_token(' '));
    }
    EXPECT_TRUE(matcher.follow(tokens));
    tokens.resize(before.size() + 1);  // a step back, and there is room again
    EXPECT_TRUE(matcher.follow(tokens) &&
                is_set(matcher.allowed(), static_cast<size_t>(raw(byte_token(' ')))));
    return count;
  };
  EXPECT_EQ(most_blanks(json, "{"), 32);
  EXPECT_EQ(most_blanks(json, "{\"a\":\"text"), 32);
  EXPECT_EQ(most_blanks(spaces, "\""), 60);  // nothing else can come
  EXPECT_EQ(most_blanks(regex, ""), 100);
}

TEST(Constraint, StopIdsOfTheRequestMayComeWhereTheTextMayEnd) {
  ConstraintCompiler compiler(vocabulary(), {}, {});
  const auto constraint = compiled(compiler, Kind::kRegex, "ab?");
  ASSERT_NE(constraint, nullptr);
  ConstraintMatcher matcher(constraint);
  const std::vector<TokenId> stop = {TokenId{kControlPiece}};
  ASSERT_TRUE(matcher.follow({}, stop));
  EXPECT_FALSE(is_set(matcher.allowed(), kControlPiece));
  const std::vector<TokenId> a = {byte_token('a')};
  ASSERT_TRUE(matcher.follow(a, stop));
  EXPECT_TRUE(is_set(matcher.allowed(), kControlPiece));
  EXPECT_TRUE(is_set(matcher.allowed(), kEndPiece));
}

TEST(Constraint, ATokenThatIsNotAllowedIsADeadEnd) {
  ConstraintCompiler compiler(vocabulary(), {}, {});
  const auto constraint = compiled(compiler, Kind::kRegex, "ab");
  ASSERT_NE(constraint, nullptr);
  ConstraintMatcher matcher(constraint);
  const std::vector<TokenId> wrong = {byte_token('x')};
  EXPECT_FALSE(matcher.follow(wrong));
  EXPECT_FALSE(matcher.may_end());
  EXPECT_FALSE(is_set(matcher.allowed(), static_cast<size_t>(raw(byte_token('a')))));
  // Of these alone: a place that beams give up is another beam's next.
  const std::vector<TokenId> right = {byte_token('a'), byte_token('b')};
  for (size_t n = 0; n <= right.size(); ++n) EXPECT_TRUE(matcher.follow(std::span(right).first(n)));
  EXPECT_TRUE(matcher.may_end());
}

// The way is closed behind a token that is allowed.
TEST(Constraint, WhereNothingMayComeAnotherWayIsOpen) {
  ConstraintVocabulary few;
  few.bytes = {"", "a", "b"};
  few.end_ids = {TokenId{kEndPiece}};
  ConstraintCompiler compiler(few, {}, {});
  const auto constraint = compiled(compiler, Kind::kRegex, "ax|b");
  ASSERT_NE(constraint, nullptr);
  ConstraintMatcher matcher(constraint);
  const std::vector<TokenId> a = {TokenId{1}}, b = {TokenId{2}};
  EXPECT_FALSE(matcher.follow(a));  // no token has an x
  EXPECT_TRUE(matcher.follow(b));
  EXPECT_TRUE(matcher.may_end());
}

// The sampler's side: masks, the end where nothing else is left, the dead end.
TEST(Constraint, SamplerKeepsToTheMask) {
  const std::vector<float> row = {9, 8, 7, 6, 5, 4};
  const std::vector<TokenId> ends = {TokenId{1}}, suppressed = {TokenId{5}};
  Scratch scratch(row.size());
  Params params;
  params.temperature = 0;
  params.logprobs = 0;
  const auto pick_with = [&](uint32_t allowed, const Params& p) {
    std::vector<float> logits = row;
    const std::vector<uint32_t> mask = {allowed};
    const Context context{
        .prompt = {}, .generated = {}, .end_ids = ends, .suppressed_ids = suppressed, .allowed = mask};
    return pick(logits, p, context, scratch);
  };
  EXPECT_EQ(raw(pick_with(0b011100, params).id), 2);
  EXPECT_FLOAT_EQ(pick_with(0b011100, params).logprob,
                  pick_with(0b111111, params).logprob - 2);  // of the raw logits
  Params bound = params;
  bound.min_tokens = 5;
  EXPECT_EQ(raw(pick_with(0b011010, bound).id), 3);  // the end has to wait
  EXPECT_EQ(raw(pick_with(0b100010, bound).id), 1);  // nothing but the end is left
  bound = params;
  bound.ignore_eos = true;
  EXPECT_EQ(raw(pick_with(0b000110, bound).id), 2);
  EXPECT_EQ(raw(pick_with(0b000010, bound).id), 1);
  EXPECT_TRUE(pick_with(0b000010, bound).is_end);
  const Pick dead = pick_with(0b100000, params);  // suppressed
  EXPECT_FALSE(dead.finite);
  EXPECT_TRUE(dead.dead_end);
  std::mt19937 random(5);
  params.temperature = 1;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    params.seed = seed;
    const uint32_t mask = 1 + static_cast<uint32_t>(random() % 31);
    const Pick drawn = pick_with(mask, params);
    ASSERT_TRUE(drawn.finite && ((mask >> raw(drawn.id)) & 1)) << mask;
  }
}

// Whole words and a part of one; what is broken in the row stays broken, allowed or not.
TEST(Constraint, MaskedRowsAreWhatTheirBitsSay) {
  constexpr size_t kRow = 32 * 3 + 7;
  std::mt19937 random(8);
  Scratch scratch(kRow);
  Params params;
  params.temperature = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<float> row(kRow);
    for (float& x : row) x = static_cast<float>(random() % 1000) - 500;
    std::vector<uint32_t> mask((kRow + 31) / 32);
    for (uint32_t& word : mask) word = random() % 3 == 0 ? 0 : static_cast<uint32_t>(random());
    mask.back() &= (1u << 7) - 1;
    mask[0] |= 1;
    size_t wanted = 0;
    for (size_t id = 0; id < kRow; ++id)
      if (is_set(mask, id) && (row[id] > row[wanted] || !is_set(mask, wanted))) wanted = id;
    const Context context{
        .prompt = {}, .generated = {}, .end_ids = {}, .suppressed_ids = {}, .allowed = mask};
    std::vector<float> logits = row;
    const Pick good = pick(logits, params, context, scratch);
    ASSERT_TRUE(good.finite);
    ASSERT_EQ(static_cast<size_t>(raw(good.id)), wanted);
    logits = row;
    logits[random() % kRow] = round % 2 == 0 ? NAN : -INFINITY;
    const Pick bad = pick(logits, params, context, scratch);
    ASSERT_FALSE(bad.finite || bad.dead_end);
  }
}

TEST(Constraint, KeptUntilRoomIsNeededAndBookedExactly) {
  int64_t booked = 0;
  ConstraintLimits limits;
  limits.held_bytes = size_t{256} << 10;
  {
    ConstraintCompiler compiler(vocabulary(), limits, [&](int64_t bytes) { booked += bytes; });
    EXPECT_EQ(booked, 0);
    const auto first = compiled(compiler, Kind::kRegex, "first[a-z]{3}");
    EXPECT_EQ(compiler.find({Kind::kRegex, "first[a-z]{3}"}), first);
    EXPECT_EQ(compiler.find({Kind::kGrammar, "first[a-z]{3}"}), nullptr);
    EXPECT_EQ(booked, static_cast<int64_t>(first->bytes()));
    for (int i = 0; i < 300; ++i) {
      ASSERT_NE(compiled(compiler, Kind::kRegex, "n" + std::to_string(i) + "[a-f]{4}"), nullptr);
      ASSERT_LE(booked, static_cast<int64_t>(limits.held_bytes));
    }
    EXPECT_EQ(compiler.find({Kind::kRegex, "first[a-z]{3}"}), first);  // in use
    EXPECT_NE(compiler.find({Kind::kRegex, "n299[a-f]{4}"}), nullptr);
    EXPECT_EQ(compiler.find({Kind::kRegex, "n0[a-f]{4}"}), nullptr);
    ConstraintMatcher matcher(first);
    EXPECT_TRUE(matcher.follow({}));
    EXPECT_GT(matcher.bytes(), 0u);
  }
  EXPECT_EQ(booked, 0);
}

TEST(Constraint, TablesAreAsPlanned) {
  ConstraintVocabulary words = vocabulary();
  for (int i = 0; i < 20'000; ++i) words.bytes.push_back("w" + std::to_string(i) + std::string(i % 40, 'x'));
  const auto planned = static_cast<double>(ConstraintCompiler::planned_bytes(words));
  EXPECT_NEAR(static_cast<double>(ConstraintCompiler(words, {}, {}).table_bytes()), planned, planned * 0.1);
}

TEST(Constraint, WhatIsInUseCanLeaveNoRoom) {
  ConstraintLimits limits;
  limits.held_bytes = size_t{64} << 10;
  ConstraintCompiler compiler(vocabulary(), limits, {});
  std::vector<std::shared_ptr<const Constraint>> in_use;
  for (int i = 0; i < 1000; ++i) {
    auto made = compiler.compile({Kind::kRegex, "x" + std::to_string(i)});
    if (!made) {
      EXPECT_EQ(made.error().code, base::ErrorCode::kUnavailable);
      EXPECT_GT(in_use.size(), 2u);
      for (size_t used = 0; used < in_use.size(); ++used)
        ASSERT_EQ(compiler.find({Kind::kRegex, "x" + std::to_string(used)}), in_use[used]);
      in_use.clear();
      EXPECT_TRUE(compiler.compile({Kind::kRegex, "y"}));
      return;
    }
    in_use.push_back(*made);
  }
  FAIL() << "1000 constraints fit into 64 KiB";
}

// An allocation may fail anywhere: the library survives it, and gives back what it had.
TEST(Constraint, AnyBudgetEndsInAnAnswer) {
  int failed = 0, made = 0;
  for (size_t bytes = 512; bytes < size_t{8} << 20; bytes += bytes / 16) {
    ConstraintLimits limits;
    limits.compile_bytes = bytes;
    int64_t booked = 0;
    ConstraintCompiler compiler(vocabulary(), limits, [&](int64_t more) { booked += more; });
    for (const ConstraintSpec& spec :
         {ConstraintSpec{Kind::kJsonSchema, kPerson},
          ConstraintSpec{Kind::kGrammar, "root ::= \"(\" root \")\" | [a-c]+"}}) {
      const int64_t before = booked;
      const auto result = compiler.compile(spec);
      ++(result ? made : failed);
      if (!result) {
        ASSERT_THAT(result.error().message, HasSubstr("to compile")) << bytes;
        ASSERT_EQ(booked, before);
      }
    }
  }
  EXPECT_GT(failed, 10);
  EXPECT_GT(made, 0);
  ConstraintLimits limits;
  limits.compile_us = -1;
  ConstraintCompiler late(vocabulary(), limits, {});
  const auto result = late.compile({Kind::kJsonSchema, kPerson});
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("to compile"));
}

extern "C" {
void* tally_xgrammar_allocate(size_t size);
void tally_xgrammar_release(void* memory, size_t size);
}

// A thread that has to wait for a core loses nothing; one that runs does, whether it allocates or not.
TEST(Constraint, BudgetsOfTimeAreOfTheThreadItself) {
  constexpr int64_t kBudgetUs = 50'000;
  const auto allocate = [] {
    for (int i = 0; i < 1000; ++i) tally_xgrammar_release(tally_xgrammar_allocate(16), 16);
  };
  const auto run = [] {
    for (const int64_t begin = base::thread_cpu_us(); base::thread_cpu_us() - begin <= kBudgetUs;) {
    }
  };
  Meter patient, busy, silent;
  for (Meter* meter : {&patient, &busy, &silent}) meter->cpu_us_max = kBudgetUs;
  {
    const Meter::Running running(patient);
    std::this_thread::sleep_for(std::chrono::microseconds(2 * kBudgetUs));
    EXPECT_NO_THROW(allocate());
  }
  EXPECT_FALSE(patient.out_of_time);
  {
    const Meter::Running running(busy);
    run();
    EXPECT_THROW(allocate(), std::bad_alloc);
  }
  {
    const Meter::Running running(silent);
    run();
  }
  EXPECT_TRUE(silent.out_of_time);
}

TEST(Constraint, WhatTakesTooLongToFollowIsRefused) {
  ConstraintLimits limits;
  limits.step_us = -1;
  ConstraintCompiler compiler(vocabulary(), limits, {});
  const auto refused = compiler.compile({Kind::kRegex, "a"});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, base::ErrorCode::kBadData);
  EXPECT_THAT(refused.error().message, HasSubstr("to follow"));
}

// A structural tag with this between its marks.
std::string tag(const std::string& content) {
  return R"({"type":"structural_tag","format":{"type":"tag","begin":"<","end":">","content":)" + content + "}}";
}

// A15 to A17, A20, A21: each ends in a message or in a constraint, soon.
TEST(Constraint, HostileTexts) {
  struct Row {
    Kind kind;
    std::string text;
    std::string says;  // empty: it compiles; "*": a message or a constraint
  };
  std::string choices, chain = "root ::= r0\n", refs = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 10'000; ++i)
    choices += (i ? "," : "") + (R"({"const":"v)" + std::to_string(i) + R"("})");
  for (int i = 0; i < 15'000; ++i) chain += "r" + std::to_string(i) + "::=r" + std::to_string(i + 1) + "\n";
  for (int i = 0; i < 3'000; ++i)
    refs += "\"d" + std::to_string(i) + R"(":{"$ref":"#/$defs/d)" + std::to_string(i + 1) + "\"},";
  const Row rows[] = {
      {Kind::kJsonSchema, R"({"$ref":"#"})", "Circular"},
      {Kind::kJsonSchema,
       R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})", "Circular"},
      {Kind::kJsonSchema, R"({"type":"object","properties":{"next":{"$ref":"#"}}})", ""},
      {Kind::kJsonSchema, R"({"$ref":"http://127.0.0.1:1/x.json"})", "URI"},
      {Kind::kJsonSchema, R"({"$ref":"#/$defs/x"})", "Cannot find"},
      {Kind::kJsonSchema, refs + R"("d3000":{"type":"null"}}})", "*"},
      {Kind::kJsonSchema, R"({"type":5})", "Type should be a string"},
      {Kind::kJsonSchema, R"({"type":"thing"})", "thing"},
      {Kind::kJsonSchema, "{\"anyOf\":[" + choices + "]}", "*"},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"(a+)+b"})", ""},
      {Kind::kJsonSchema, R"({"type":"string","maxLength":1000000000})",
       "maxLength is 1000000000, at most 8192"},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"[^{]a{2,9999}"})", "bound 9999, at most 256"},
      {Kind::kJsonSchema, R"({"type":"string","minLength":5,"maxLength":3})", "greater than"},
      {Kind::kJsonSchema, R"({"type":"integer","minimum":5,"maximum":3})", "range"},
      {Kind::kJsonSchema, R"({"type":"object","properties":{"a":false},"required":["a"]})", "false"},
      {Kind::kJsonSchema, R"({"oneOf":[{"type":"number"},{"type":"integer"}]})", "oneOf"},
      {Kind::kJsonSchema, R"({"type":"string","pattern":"a+","maxLength":3})", "pattern"},
      {Kind::kJsonSchema, "", "JSON"},
      {Kind::kJsonSchema, "{\"a\":" + repeated("[", 30'000) + repeated("]", 30'000) + "}", "30001 deep"},
      {Kind::kRegex, "(a+)+b", ""},
      {Kind::kRegex, repeated("a?", 2000) + repeated("a", 2000), "it takes more than"},
      {Kind::kRegex, repeated("(", 30'000) + "a" + repeated(")", 30'000), "30000 deep"},
      {Kind::kRegex, repeated("(", 128) + "a" + repeated(")", 128), ""},
      {Kind::kRegex, "a{1,1000000000}", "at most 8192"},
      {Kind::kRegex, "a\\{99999\\}[{99999}]", ""},
      {Kind::kRegex, "(?=a)b", "ookahead"},
      {Kind::kRegex, "(a)\\1", "ackreference"},
      {Kind::kRegex, "(a", "parenthesis"},
      {Kind::kRegex, std::string("a\0b", 3), "NUL"},
      {Kind::kRegex, "\xFF", "not UTF-8 at byte 0"},
      {Kind::kGrammar, "root ::= root \"a\" | \"b\"", "\"root\" begins with itself"},
      {Kind::kGrammar, "root ::= a\na ::= b \"x\"\nb ::= a | \"y\"", "begins with itself"},
      {Kind::kGrammar, "root ::= a? \"(\" root \")\" | [x]\na ::= \"root\" | \"\"", ""},
      {Kind::kGrammar, "root ::= (\"\")*", "nothing but the empty text"},
      {Kind::kGrammar, "root ::= other", "other"},
      {Kind::kGrammar, "a ::= \"b\"", "root"},
      {Kind::kGrammar, "", "root"},
      {Kind::kGrammar, "root ::= " + repeated("(", 30'000) + "\"a\"" + repeated(")", 30'000), "30000 deep"},
      {Kind::kGrammar, "root ::= \"a\"{3,99999}", "at most 8192"},
      {Kind::kGrammar, "root ::= \"{99999}\" [{99999}]", ""},
      {Kind::kGrammar, chain + "r15000::=\"a\"\n", "*"},
      {Kind::kGrammar, "root ::= \"" + repeated("a", 300'000) + "\"", "300011 bytes, at most 262144"},
      {Kind::kStructuralTag, "{}", "tructural"},
      {Kind::kStructuralTag, tag(R"({"type":"json_schema","json_schema":{"$ref":"#"}})"), "Circular"},
      {Kind::kStructuralTag,
       tag(R"({"type":"json_schema","json_schema":{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}}})"),
       "Circular"},
      {Kind::kStructuralTag,
       tag(R"({"type":"grammar","grammar":"root ::= a\na ::= b \"x\"\nb ::= a | \"y\""})"),
       "begins with itself"},
      {Kind::kStructuralTag,
       tag(R"({"type":"sequence","elements":[{"type":"const_string","value":"x"},{"type":"grammar","grammar":"root ::= root \"a\" | \"b\""}]})"),
       "begins with itself"},
      {Kind::kStructuralTag, "[", "JSON"},
  };
  ConstraintLimits limits;
  limits.compile_us = 300'000;  // some rows take all of it
  ConstraintCompiler compiler(vocabulary(), limits, {});
  for (const Row& row : rows) {
    const int64_t begin = base::now_us();
    const auto made = compiler.compile({row.kind, row.text});
    const std::string shown = row.text.substr(0, 80);
    EXPECT_LT(base::now_us() - begin, kSoonUs) << shown;
    if (row.says == "*") continue;
    if (row.says.empty()) {
      EXPECT_TRUE(made) << shown << ": " << (made ? "" : made.error().message);
      continue;
    }
    ASSERT_FALSE(made) << shown;
    EXPECT_EQ(made.error().code, base::ErrorCode::kBadData) << shown;
    EXPECT_THAT(made.error().message, HasSubstr(row.says)) << shown;
    EXPECT_LE(made.error().message.size(), 400u) << shown;
  }
  EXPECT_NE(compiled(compiler, Kind::kRegex, "still fine"), nullptr);
}

#if !defined(TALLY_INSTRUMENTED)
// The most anonymous memory that the process had since the last call, bytes.
int64_t take_peak() {
  std::ifstream status("/proc/self/status");
  int64_t kib = 0;
  for (std::string word; status >> word;)
    if (word == "VmHWM:") status >> kib;
  std::ofstream("/proc/self/clear_refs") << 5;
  return kib << 10;
}

// What the budget counts is what the process takes: nothing of note goes by it.
TEST(Constraint, WhatACompilationTakesIsCounted) {
  std::string texts, rules = "root ::= r0\n", members;
  for (int i = 0; i < 20'000; ++i) texts += (i ? ",\"" : "\"") + std::to_string(i * 7919) + "\"";
  for (int i = 0; i < 6'000; ++i)
    rules += fmt::format("r{} ::= [a-z]+ \"x{}\" r{}\n", i, i, i + 1);
  for (int i = 0; i < 4'000; ++i)
    members += (i ? "," : "") + ("\"m" + std::to_string(i)) + R"(":{"type":"string","description":"about it"})";
  ConstraintLimits limits;
  limits.compile_bytes = size_t{8} << 20;
  ConstraintCompiler compiler(vocabulary(), limits, {});
  for (const ConstraintSpec& spec :
       {ConstraintSpec{Kind::kJsonSchema, "{\"enum\":[" + texts + "]}"},
        ConstraintSpec{Kind::kGrammar, rules + "r6000 ::= \"a\"\n"},
        ConstraintSpec{Kind::kJsonSchema, R"({"type":"object","properties":{)" + members + "}}"},
        ConstraintSpec{Kind::kJsonSchema, "{\"const\":\"" + repeated("\\u1234", 40'000) + "\"}"}}) {
    take_peak();
    const int64_t before = take_peak();
    (void)compiler.compile(spec);
    constexpr int64_t kElse = int64_t{3} << 20;  // the stack of its thread, slack of the allocator
    EXPECT_LT(take_peak() - before, static_cast<int64_t>(limits.compile_bytes) + kElse)
        << spec.text.substr(0, 40);
  }
}
#endif

// A16: the same answer at each depth.
TEST(Constraint, BoundsOfRepetitions) {
  ConstraintCompiler compiler(vocabulary(), {}, {});
  const auto nested = [](std::string schema, int depth) {
    for (int i = 0; i < depth; ++i)
      schema = R"({"type":"object","properties":{"a":)" + schema + R"(},"required":["a"]})";
    return schema;
  };
  for (const uint32_t bound : {8191u, 8192u, 8193u}) {
    const std::string n = std::to_string(bound);
    for (int depth = 0; depth <= 3; ++depth) {
      const std::pair<Kind, std::string> specs[] = {
          {Kind::kJsonSchema, nested(R"({"type":"string","maxLength":)" + n + "}", depth)},
          {Kind::kJsonSchema, nested(R"({"type":"string","minLength":)" + n + "}", depth)},
          {Kind::kJsonSchema,
           nested(R"({"type":"array","items":{"type":"integer"},"maxItems":)" + n + "}", depth)},
          {Kind::kRegex, repeated("(", depth) + "a" + repeated("{" + n + "})", depth) + "{" + n + "}"},
          {Kind::kGrammar,
           "root ::= " + repeated("(", depth) + "\"a\"" + repeated("{" + n + "})", depth) + "{1," + n + "}"},
      };
      for (const auto& [kind, text] : specs) {
        const auto made = compiler.compile({kind, text});
        EXPECT_EQ(static_cast<bool>(made), bound <= 8192)
            << text << (made ? "" : ": " + made.error().message);
      }
    }
  }
}

// They are unfolded, so the cap is lower.
TEST(Constraint, BoundsOfRepetitionsInPatterns) {
  ConstraintCompiler compiler(vocabulary(), {}, {});
  for (const uint32_t bound : {255u, 256u, 257u}) {
    for (
        const char* schema :
        {R"({"type":"string","pattern":"^[a-f]{N}$"})",
         R"({"type":"array","items":{"type":"array","items":{"type":"string","pattern":"^[a-f]{1,N}$"}}})"}) {
      std::string text = schema;
      text.replace(text.find('N'), 1, std::to_string(bound));
      EXPECT_EQ(static_cast<bool>(compiler.compile({Kind::kJsonSchema, text})), bound <= 256) << text;
    }
  }
}

TEST(Constraint, AModelWithoutAnEndTokenIsRefused) {
  ConstraintVocabulary v = vocabulary();
  v.end_ids.clear();
  ConstraintCompiler compiler(v, {}, {});
  const auto result = compiler.compile({Kind::kRegex, "a"});
  ASSERT_FALSE(result);
  EXPECT_THAT(result.error().message, HasSubstr("no token that could end"));
}

}  // namespace
}  // namespace tally::sample
