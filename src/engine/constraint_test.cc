// Constrained sequences: their tokens keep to the constraint whatever becomes of them, and nobody else
// notices.
#include "sample/constraint.h"

#include "engine/hand_test_support.h"

#include <algorithm>

namespace tally::engine {
namespace {

using Kind = sample::ConstraintSpec::Kind;

constexpr int32_t kEndId = 2;
constexpr size_t kVocab = 1024;

// Letters, digits and pairs of letters by id; a model that has never seen a text does not mind.
std::string spelling(size_t id) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyz0123456789{}\":, ";
  if (id < 4) return "";
  const std::string one(1, kLetters[id % kLetters.size()]);
  return id < 512 ? one : one + kLetters[id / 3 % kLetters.size()];
}

LoadRequest with_end(LoadRequest load = small_request()) {
  load.end_ids = {TokenId{kEndId}};
  return load;
}

// Constraints of one engine, booked where it books.
struct Bed {
  Hand hand;
  sample::ConstraintCompiler compiler;

  explicit Bed(const LoadRequest& load = with_end(), const sample::ConstraintLimits& limits = {})
      : hand(load), compiler(words(), limits, [this](int64_t bytes) {
          hand.accounts.book(base::Account::kRuntime, sample::kConstraintPart, bytes);
        }) {}

  static sample::ConstraintVocabulary words() {
    sample::ConstraintVocabulary v;
    for (size_t id = 0; id < kVocab; ++id) v.bytes.push_back(spelling(id));
    v.end_ids = {TokenId{kEndId}};
    return v;
  }
  std::shared_ptr<const sample::Constraint> compile(const std::string& text, Kind kind = Kind::kRegex) {
    auto made = compiler.compile({kind, text});
    EXPECT_TRUE(made) << text;
    return *made;
  }
  uint64_t booked() const {
    for (const base::AccountPart& part : hand.accounts.use(base::Account::kRuntime).parts)
      if (part.name == sample::kConstraintPart) return part.reserved;
    return 0;
  }
};

Request constrained(std::shared_ptr<const sample::Constraint> constraint, uint64_t seed,
                    uint32_t tokens = 40) {
  Request r = greedy(prompt(20, 7), tokens);
  r.params.temperature = 1;
  r.params.seed = seed;
  r.constraint = std::move(constraint);
  return r;
}

std::string text_of(const Answer& answer) {
  std::string text;
  for (const TokenId id : answer.ids) text += spelling(static_cast<size_t>(raw(id)));
  return text;
}

// [a-f]{2,4}(0|11)x
bool matches(const std::string& text) {
  const size_t letters = std::min(text.find_first_not_of("abcdef"), text.size());
  const std::string rest = text.substr(letters);
  return letters >= 2 && letters <= 4 && (rest == "0x" || rest == "11x");
}
constexpr const char* kPattern = "[a-f]{2,4}(0|11)x";
constexpr const char* kForced = "(x|y)every word of it is forced[,:]";

TEST(Constraints, EverySeedKeepsToThem) {
  Bed bed;
  std::vector<Request> requests;
  for (uint64_t seed = 0; seed < 24; ++seed) requests.push_back(constrained(bed.compile(kPattern), seed));
  const std::vector<Answer> answers = bed.hand.run(requests);
  size_t different = 0;
  for (const Answer& a : answers) {
    EXPECT_EQ(a.finish, Finish::kStop);
    EXPECT_EQ(raw(a.ids.back()), kEndId);
    EXPECT_TRUE(matches(text_of(a))) << text_of(a);
    different += a.ids != answers[0].ids;
  }
  EXPECT_GT(different, 10u);
}

TEST(Constraints, OthersAndTheyThemselvesAreAsAlone) {
  Request free = greedy(prompt(30, 3), 20);
  free.params.temperature = 1;
  Bed one, two;
  const Answer free_alone = one.hand.run({free}).at(0);
  const Answer bound_alone = one.hand.run({constrained(one.compile(kPattern), 5)}).at(0);
  const auto all =
      two.hand.run({constrained(two.compile("[a-z]{30}"), 1), free, constrained(two.compile(kPattern), 5)});
  EXPECT_EQ(all[1], free_alone);
  EXPECT_EQ(all[2], bound_alone);
  EXPECT_EQ(two.hand.engine->stats().blocks_held, 0u);
}

TEST(Constraints, ChoicesChunksAndPreemptionChangeNothing) {
  struct Variant {
    const char* name;
    void (*change)(Settings&);
  };
  const Variant variants[] = {
      {"as it is", [](Settings&) {}},
      {"one thread", [](Settings& s) { s.threads = 1; }},
      {"chunks of 8", [](Settings& s) { s.step_tokens = 8; }},
      {"prefix cache off", [](Settings& s) { s.prefix_cache = false; }},
      {"small pool", [](Settings& s) { s.kv_pool_bytes = 1; }},  // replaced below
  };
  std::vector<Answer> wanted;
  for (const Variant& variant : variants) {
    LoadRequest load = with_end();
    variant.change(load.settings);
    const bool small = load.settings.kv_pool_bytes == 1;
    if (small) load.settings.kv_pool_bytes = 12 * plan_memory(small_request()).value().kv_bytes_per_token * 16;
    Bed bed(load);
    std::vector<Request> requests;
    for (uint64_t seed = 3; seed < 7; ++seed)
      requests.push_back(constrained(bed.compile("([a-z][0-9]){30}"), seed, 60));
    requests[0].choices = 2;
    const std::vector<Answer> got = bed.hand.run(requests);
    if (wanted.empty()) wanted = got;
    EXPECT_EQ(got, wanted) << variant.name;
    EXPECT_EQ(bed.hand.engine->stats().preemptions > 0, small) << variant.name;
  }
  EXPECT_NE(wanted[0].ids, wanted[1].ids);
}

TEST(Constraints, BeamsKeepToThem) {
  Bed bed;
  for (const uint32_t width : {1u, 3u, 6u}) {
    Request r = constrained(bed.compile(kPattern), 0);
    r.beams = BeamSearch{.width = width};
    r.choices = width;
    size_t answered = 0;
    for (const Answer& a : bed.hand.run({r})) {
      if (a.ids.empty()) continue;
      ++answered;
      EXPECT_TRUE(matches(text_of(a))) << width << ": " << text_of(a);
      EXPECT_EQ(a.finish, Finish::kStop);
    }
    EXPECT_GT(answered, 0u);
  }
  EXPECT_EQ(bed.hand.engine->stats().blocks_held, 0u);
}

// Masks follow drafts row by row: what is drafted from a text that repeats itself is right now and then, and
// forbidden now and then.
TEST(Constraints, DraftsChangeNothing) {
  LoadRequest load = with_end();
  Bed off(load);
  load.settings.policy.speculate = "lookup";
  load.row_prices_us = {100, 100};
  Bed drafts(load);
  for (const char* pattern : {"(ab|abc){3,20}x", "([ab]{3}c?){2,9}", "(abcd){9}", kForced, kPattern}) {
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      Request a = constrained(off.compile(pattern), seed, 60), b = constrained(drafts.compile(pattern), seed, 60);
      for (Request* r : {&a, &b}) {
        r->params.top_k = static_cast<int32_t>(seed % 3);
        r->params.penalties.frequency = seed % 2 == 0 ? 0.5f : 0;
        r->params.min_tokens = seed % 4 == 0 ? 12 : 0;
        if (seed == 5) r->params.stop_ids = {TokenId{6}};
      }
      EXPECT_EQ(off.hand.run({a}), drafts.hand.run({b})) << pattern << ' ' << seed;
    }
  }
  EXPECT_GT(drafts.hand.engine->stats().speculation.accepted, 20u);
  EXPECT_LT(drafts.hand.engine->stats().speculation.accepted,
            drafts.hand.engine->stats().speculation.drafted);
}

// Looking ahead only saves time: where it takes too much, the sequence goes on without, to the same answer.
TEST(Constraints, LookingAheadForTooLongChangesNothing) {
  LoadRequest load = with_end();
  Bed off(load);
  load.settings.policy.speculate = "lookup";
  load.row_prices_us = {100, 100};
  sample::ConstraintLimits hasty;
  hasty.ahead_us = -1;
  Bed looks(load), gives_up(load, hasty);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const auto wanted = off.hand.run({constrained(off.compile(kForced), seed)});
    EXPECT_EQ(wanted.at(0).finish, Finish::kStop);
    EXPECT_EQ(looks.hand.run({constrained(looks.compile(kForced), seed)}), wanted) << seed;
    EXPECT_EQ(gives_up.hand.run({constrained(gives_up.compile(kForced), seed)}), wanted) << seed;
  }
  const auto forced = [](const Bed& bed) {
    return bed.hand.engine->stats().speculation.by[static_cast<size_t>(DraftSource::kConstraint)].drafted;
  };
  EXPECT_GT(forced(looks), 0u) << "there was something to see";
  EXPECT_EQ(forced(gives_up), 0u);
}

TEST(Constraints, CutIsLengthAndTheEndComesWhereNothingElseCan) {
  Bed bed;
  const Answer cut = bed.hand.run({constrained(bed.compile("[a-z]{30}"), 1, 5)}).at(0);
  EXPECT_EQ(cut.finish, Finish::kLength);
  EXPECT_EQ(cut.ids.size(), 5u);
  Request patient = constrained(bed.compile("ab"), 1);
  patient.params.ignore_eos = true;
  patient.params.min_tokens = 30;
  const Answer ended = bed.hand.run({patient}).at(0);
  EXPECT_EQ(ended.finish, Finish::kStop);
  EXPECT_EQ(text_of(ended), "ab");
}

TEST(Constraints, ADeadEndFailsAlone) {
  LoadRequest load = with_end();
  for (size_t id = 0; id < kVocab; ++id)
    if (spelling(id).find('z') != std::string::npos)
      load.suppressed_ids.push_back(TokenId{static_cast<int32_t>(id)});
  Bed bed(load);
  const auto answers = bed.hand.run({constrained(bed.compile("az"), 1), constrained(bed.compile("ab"), 1)});
  EXPECT_EQ(answers[0].finish, Finish::kDeadEnd);
  EXPECT_EQ(text_of(answers[0]), "a");
  EXPECT_EQ(answers[1].finish, Finish::kStop);
  Request beams = constrained(bed.compile("az"), 1);
  beams.beams = BeamSearch{.width = 2};
  beams.choices = 1;
  EXPECT_EQ(bed.hand.run({beams}).at(0).finish, Finish::kDeadEnd);
  EXPECT_EQ(bed.hand.engine->stats().finished[static_cast<size_t>(Finish::kDeadEnd)], 2u);
  EXPECT_EQ(bed.hand.engine->stats().blocks_held, 0u);
}

// A way in that never ends: as where the context is full.
TEST(Constraints, WhatCannotBeFollowedFurtherIsLength) {
  constexpr uint32_t kTokens = 400;
  const std::string nested = "root ::= \"{\" root \"}\"";
  sample::ConstraintLimits limits;
  limits.forget_bytes = 1024;
  {
    sample::ConstraintCompiler compiler(Bed::words(), limits, {});
    const auto made = compiler.compile({Kind::kGrammar, nested});
    limits.matcher_bytes = 2 * sample::ConstraintMatcher(*made).bytes() + 4096;
  }
  LoadRequest load = with_end();
  load.settings.max_model_len = kTokens + 20;
  Bed bed(load, limits);
  const auto deep = bed.compile(nested, Kind::kGrammar);
  Request beams = constrained(deep, 2, kTokens);
  beams.beams = BeamSearch{.width = 2};
  const auto answers =
      bed.hand.run({constrained(deep, 1, kTokens), constrained(bed.compile(kPattern), 1), beams});
  EXPECT_EQ(answers[0].finish, Finish::kLength);
  EXPECT_GT(answers[0].ids.size(), 20u);
  EXPECT_LT(answers[0].ids.size(), kTokens);
  EXPECT_EQ(answers[1].finish, Finish::kStop);
  EXPECT_EQ(answers[2].finish, Finish::kLength);
  EXPECT_EQ(bed.hand.engine->stats().finished[static_cast<size_t>(Finish::kDeadEnd)], 0u);
  EXPECT_EQ(bed.hand.engine->stats().blocks_held, 0u);
}

// Who waits has no place in its constraint, be it new or preempted: there are no more than seats.
TEST(Constraints, OnlyWhoRunsHoldsAPlace) {
  LoadRequest load = with_end();
  load.settings.max_seqs = 6;
  load.settings.kv_pool_bytes = 12 * plan_memory(small_request()).value().kv_bytes_per_token * 16;
  sample::ConstraintLimits limits;
  Bed bed(load, limits);
  const auto constraint = bed.compile("([a-z][0-9]){30}");
  const uint64_t before = bed.booked();
  std::vector<std::shared_ptr<Stream>> streams;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const Submitted s = bed.hand.engine->submit(constrained(constraint, seed, 80));
    ASSERT_EQ(s.streams.size(), 1u);
    streams.push_back(s.streams[0]);
  }
  EXPECT_EQ(bed.booked(), before);
  const uint64_t place = limits.matcher_bytes + 80 * sample::ConstraintMatcher::token_bytes();
  uint64_t most = 0;
  std::vector<Answer> answers(streams.size());
  for (bool all = false; !all;) {
    bed.hand.loop->step();
    const Stats stats = bed.hand.engine->stats();
    ASSERT_LE(bed.booked() - before, stats.running * place);
    most = std::max(most, bed.booked() - before);
    all = true;
    for (size_t i = 0; i < streams.size(); ++i) all &= drain(*streams[i], answers[i]);
  }
  EXPECT_GT(bed.hand.engine->stats().preemptions, 0u);
  EXPECT_GT(most, 0u);
  EXPECT_EQ(bed.booked(), before);
  for (const Answer& answer : answers) EXPECT_EQ(answer.finish, Finish::kStop);
}

TEST(Constraints, WhatTheyHoldIsBookedAndGivenBack) {
  Bed bed;
  const auto constraint = bed.compile("[a-z]{100}");
  const uint64_t before = bed.booked();
  EXPECT_EQ(before, constraint->bytes());
  const Submitted s = bed.hand.engine->submit(constrained(constraint, 1, 80));
  EXPECT_EQ(bed.booked(), before);
  bed.hand.loop->step();
  const uint64_t at_first = bed.booked();
  EXPECT_GT(at_first, before);
  for (int step = 0; step < 60; ++step) bed.hand.loop->step();
  EXPECT_GT(bed.booked(), at_first);
  s.streams[0]->cancel();
  bed.hand.loop->step();
  EXPECT_EQ(bed.booked(), before);
}

// What a constrained answer keeps of its tokens is promised at the door too.
TEST(Constraints, TheirTokensHaveRoomToBeFollowed) {
  LoadRequest load = with_end();
  load.settings.max_seqs = 1, load.settings.max_queue = 31;
  load.settings.max_model_len = 1024;
  const auto taken = [&](bool bound) {
    Bed bed(load);
    const auto constraint = bed.compile("[a-z]*");
    size_t count = 0;
    std::vector<std::shared_ptr<Stream>> streams;
    Request r = constrained(bound ? constraint : nullptr, 1, 0);
    for (r.params.logprobs = -1; count < 100; ++count) {
      streams.push_back(nullptr);
      const Submitted s = bed.hand.engine->submit(r);
      if (s.streams.empty()) break;
      streams.back() = s.streams[0];
    }
    return count;
  };
  EXPECT_GT(taken(true), 0u);
  EXPECT_LT(taken(true), taken(false));
}

}  // namespace
}  // namespace tally::engine
