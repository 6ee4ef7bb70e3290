#include "sched/simulate/allocators.h"

#include "sched/simulate/replay.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace tally::sched::simulate {
namespace {

struct Asked {
  uint32_t prompt, output, choices = 1;
};

Trace trace_of(std::initializer_list<Asked> all) {
  Trace trace;
  for (const Asked& a : all)
    trace.requests.push_back({.prompt = a.prompt, .output = a.output, .choices = a.choices});
  return trace;
}

Scenario scenario_of(Scheme scheme, uint32_t pool) {
  Scenario s;
  s.scheme = scheme;
  s.pool_tokens = pool;
  s.seqs_max = 8;
  s.model_len_max = 64;
  s.cost.fixed = 1;
  return s;
}

TEST(AddressSpace, FirstFitAndHolesThatJoin) {
  AddressSpace space(100);
  const auto a = space.take(30), b = space.take(30), c = space.take(30);
  ASSERT_TRUE(a && b && c);
  EXPECT_EQ(c->at, 60U);
  EXPECT_EQ(space.free(), 10U);
  space.give(*b);
  EXPECT_EQ(space.free(), 40U);
  EXPECT_EQ(space.longest(), 30U);
  EXPECT_FALSE(space.take(31));  // 40 are free, in two pieces
  const auto d = space.take(10);
  EXPECT_EQ(d->at, 30U);  // the first hole, not the one that fits best
  space.give(*c);
  EXPECT_EQ(space.longest(), 60U);
  space.give(*d);
  space.give(*a);
  EXPECT_EQ(space.longest(), 100U);
  EXPECT_TRUE(space.take(100));
  EXPECT_EQ(space.longest(), 0U);
}

TEST(AddressSpace, RandomPiecesNeverOverlap) {
  AddressSpace space(500);
  std::map<uint32_t, uint32_t> taken;  // at -> size
  uint64_t state = 7;
  const auto next = [&] {
    return state = state * 6364136223846793005ULL + 1442695040888963407ULL, state >> 33;
  };
  for (int i = 0; i < 20'000; ++i) {
    if (next() % 2 == 0) {
      if (const auto e = space.take(static_cast<uint32_t>(1 + next() % 60))) taken[e->at] = e->size;
    } else if (!taken.empty()) {
      const auto victim = std::next(taken.begin(), static_cast<ptrdiff_t>(next() % taken.size()));
      space.give({victim->first, victim->second});
      taken.erase(victim);
    }
    uint32_t end = 0, used = 0, hole = 0;
    for (const auto& [at, size] : taken) {
      ASSERT_GE(at, end);
      hole = std::max(hole, at - end);
      end = at + size, used += size;
    }
    ASSERT_LE(end, 500U);
    ASSERT_EQ(space.free(), 500 - used);
    ASSERT_EQ(space.longest(), std::max(hole, 500 - end));
  }
  EXPECT_DEATH(space.give({0, 500}), "freed twice");
}

// 10 tokens, then 10 more: 16 slots until the 17th token, then 32.
TEST(PowerOfTwo, OneSequenceByHand) {
  const Report r = replay(trace_of({{10, 10}}), scenario_of(Scheme::kPowerOfTwo, 128), nullptr);
  EXPECT_EQ(r.finished, 1U);
  EXPECT_EQ(r.steps, 10U);
  EXPECT_EQ(r.slots.steps, 9U);     // rows at 11 ... 19 tokens
  EXPECT_EQ(r.slots.stored, 135U);  // 11 + ... + 19
  EXPECT_EQ(r.slots.allocated, 6U * 16 + 3 * 32);
  EXPECT_EQ(r.slots.reserved, 15U + 3);  // to 16, then to 19
  EXPECT_EQ(r.slots.internal, 3U * 13);  // beyond 19 of 32
  EXPECT_EQ(r.counts.copies, 1U);
  EXPECT_EQ(r.counts.copied_tokens, 16U);
  EXPECT_EQ(r.counts.preemptions, 0U);
}

TEST(MaxLength, OneSequenceByHand) {
  const Report r = replay(trace_of({{10, 10}}), scenario_of(Scheme::kMaxLength, 128), nullptr);
  EXPECT_EQ(r.slots.allocated, 9U * 64);
  EXPECT_EQ(r.slots.reserved, 36U);  // 8 + ... + 0
  EXPECT_EQ(r.slots.internal, 9U * 45);
  EXPECT_EQ(r.counts.copies, 0U);
}

// Four pieces of 16 fill the pool. The first and the third end at once: 32 slots are free, and the fifth
// request, which wants 32, cannot have them.
TEST(PowerOfTwo, HolesThatAreTooShort) {
  const Report r = replay(trace_of({{16, 1}, {10, 6}, {16, 1}, {10, 6}, {20, 2}}),
                          scenario_of(Scheme::kPowerOfTwo, 64), nullptr);
  EXPECT_EQ(r.finished, 5U);
  EXPECT_EQ(r.slots.steps, 6U);  // 5 of the second and the fourth, 1 of the fifth
  EXPECT_EQ(r.slots.external, 5U * 32);
  EXPECT_EQ(r.slots.waiting, 5U);
  EXPECT_EQ(r.counts.preemptions, 0U);
}

// Both want 32 of 64 slots while they hold 16, then 64: the later one gives way each time, the first of them
// to itself, and at the end each is alone.
TEST(PowerOfTwo, PreemptsTheLatest) {
  const Report r = replay(trace_of({{16, 20}, {16, 20}}), scenario_of(Scheme::kPowerOfTwo, 64), nullptr);
  EXPECT_EQ(r.finished, 2U);
  EXPECT_EQ(r.output_tokens, 40U);
  EXPECT_EQ(r.counts.preemptions, 4U);
  EXPECT_GT(r.counts.recomputed_tokens, 16U);
  EXPECT_EQ(r.prompt_rows, 32 + r.counts.recomputed_tokens + 4);  // a token known and not computed, each time
}

TEST(MaxLength, NoGrowthAndNoPreemption) {
  // Two pieces of 64 in 160 slots: the rest is never of use, and is in one piece.
  const Report r =
      replay(trace_of({{16, 20}, {16, 20}, {16, 20}}), scenario_of(Scheme::kMaxLength, 160), nullptr);
  EXPECT_EQ(r.finished, 3U);
  EXPECT_EQ(r.running_max, 2U);
  EXPECT_EQ(r.slots.external, 0U);
  EXPECT_EQ(r.counts.preemptions + r.counts.copies, 0U);
}

TEST(Contiguous, ChoicesHaveTheirOwnCopyOfThePrompt) {
  for (const Scheme scheme : {Scheme::kMaxLength, Scheme::kPowerOfTwo}) {
    const Report r = replay(trace_of({{20, 4, 3}}), scenario_of(scheme, 512), nullptr);
    EXPECT_EQ(r.finished, 1U);
    EXPECT_EQ(r.output_tokens, 12U);
    EXPECT_EQ(r.prompt_rows, 20U);
    EXPECT_EQ(r.counts.copies, 2U);
    EXPECT_EQ(r.counts.copied_tokens, 40U);
    EXPECT_EQ(r.slots.stored, 3U * (21 + 22 + 23));
    EXPECT_EQ(r.ttft_s.n, 1U);
    EXPECT_EQ(r.tpot_s.n, 3U);
  }
}

TEST(Contiguous, ChoicesArePreemptedTogetherUntilTheyBegin) {
  Scenario s = scenario_of(Scheme::kPowerOfTwo, 96);
  s.step_tokens = 8;  // the prompt of the second takes long enough for the first to grow
  const Report r = replay(trace_of({{8, 40}, {24, 4, 2}}), s, nullptr);
  EXPECT_EQ(r.finished, 2U);
  EXPECT_EQ(r.output_tokens, 48U);
  EXPECT_GE(r.counts.preemptions, 1U);
}

TEST(Contiguous, WhatNeverFitsIsRefused) {
  const Report r = replay(trace_of({{60, 5}, {10, 5, 9}, {40, 24}, {40, 24, 2}, {10, 5}}),
                          scenario_of(Scheme::kPowerOfTwo, 64), nullptr);
  EXPECT_EQ(r.refused[static_cast<size_t>(Refusal::kPromptTooLong)], 1U);
  EXPECT_EQ(r.refused[static_cast<size_t>(Refusal::kTooManyChoices)], 1U);
  EXPECT_EQ(r.refused[static_cast<size_t>(Refusal::kPoolTooSmall)], 1U);
  EXPECT_EQ(r.finished, 2U);
  EXPECT_EQ(r.refusals() + r.finished, 5U);
}

TEST(Contiguous, StaticBatchesBeginAndEndTogether) {
  Scenario s = scenario_of(Scheme::kMaxLength, 1024);
  s.seqs_max = 2;
  s.batching = Batching::kStatic;
  // 2 and 10 tokens together, then 3: the seat of the first stays empty.
  const Trace trace = trace_of({{4, 2}, {4, 10}, {4, 3}});
  EXPECT_EQ(replay(trace, s, nullptr).steps, 13U);
  s.batching = Batching::kContinuous;
  EXPECT_EQ(replay(trace, s, nullptr).steps, 10U);
}

}  // namespace
}  // namespace tally::sched::simulate
