// Blocks that come from elsewhere into the index of a waiting prompt.
#include "sched/plan.h"

#include <gtest/gtest.h>

namespace tally::sched {
namespace {

constexpr uint32_t kBlock = 16;

struct Bench {
  explicit Bench(uint32_t blocks)
      : ledger({.blocks = blocks, .block_tokens = kBlock}),
        scheduler({.seqs_max = 4, .queue_max = 8, .step_tokens = 64, .model_len_max = 4096}, ledger) {}

  void submit(uint64_t id, uint32_t prompt, bool held, uint32_t choices = 1, int first = 0) {
    Request request;
    request.seq = SeqId{id}, request.held = held, request.choices = choices;
    for (uint32_t i = 0; i < prompt; ++i) request.prompt.push_back(TokenId{first + static_cast<int>(i)});
    request.max_tokens = 2, request.arrival = static_cast<Tick>(id);
    ASSERT_EQ(scheduler.submit(std::move(request)).refusal, Refusal::kNone);
  }
  // One step; the rows of a sequence in it.
  uint32_t step(uint64_t id) {
    const StepPlan& plan = scheduler.plan(++now);
    uint32_t rows = 0;
    std::vector<Outcome> outcomes;
    for (const PlannedRows& group : plan.rows) {
      if (group.seq == SeqId{id}) rows = group.rows;
      for (uint32_t i = 0; i < group.outcomes(); ++i) outcomes.push_back({.token = TokenId{7}});
    }
    if (!plan.rows.empty()) scheduler.commit(outcomes, now);
    scheduler.check();
    return rows;
  }

  kv::Ledger ledger;
  Scheduler scheduler;
  Tick now = 100;
};

TEST(Adoption, WhatWasFilledIsFoundAtAdmission) {
  Bench bench(32);
  bench.submit(1, 5 * kBlock + 3, true);
  EXPECT_EQ(bench.step(1), 0u) << "held";
  EXPECT_EQ(bench.scheduler.queue_stats().deferred, 1u);
  EXPECT_EQ(bench.scheduler.matched_blocks(SeqId{1}), 0u);
  EXPECT_EQ(bench.scheduler.adopt(SeqId{1}, 2, bench.now).size(), 2u);
  bench.scheduler.check();
  bench.scheduler.adopted(2, bench.now);
  bench.scheduler.check();
  EXPECT_EQ(bench.scheduler.matched_blocks(SeqId{1}), 2u);
  EXPECT_EQ(bench.scheduler.adopt(SeqId{1}, 100, bench.now).size(), 3u) << "no further than the prompt";
  bench.scheduler.adopted(1, bench.now);  // the second was damaged
  EXPECT_EQ(bench.scheduler.matched_blocks(SeqId{1}), 3u);
  bench.scheduler.release(SeqId{1});
  EXPECT_EQ(bench.step(1), 2 * kBlock + 3);
  EXPECT_EQ(bench.scheduler.stats(SeqId{1}).cached_tokens, 3 * kBlock);
  while (!bench.scheduler.idle()) bench.step(1);
}

TEST(Adoption, TheLastTokenIsComputedWhateverComes) {
  Bench bench(32);
  bench.submit(1, 4 * kBlock, true);
  EXPECT_EQ(bench.scheduler.adopt(SeqId{1}, 100, bench.now).size(), 3u);
  bench.scheduler.adopted(3, bench.now);
  bench.scheduler.release(SeqId{1});
  EXPECT_EQ(bench.step(1), kBlock);
}

TEST(Adoption, TakesNothingThatRunningOnesNeed) {
  Bench bench(12);
  bench.submit(1, 6 * kBlock, false, 1, 1000);
  bench.step(1);  // 64 of its 96 rows: two blocks are promised to it
  bench.submit(2, 9 * kBlock, true);
  const size_t taken = bench.scheduler.adopt(SeqId{2}, 100, bench.now).size();
  EXPECT_EQ(taken, 3u) << "12 less 4, 2 promised, 2 of the watermark, 1 for growth";
  bench.scheduler.adopted(0, bench.now);
  bench.scheduler.check();
  EXPECT_EQ(bench.scheduler.matched_blocks(SeqId{2}), 0u);
}

TEST(Adoption, AResetMeanwhileLeavesNothing) {
  Bench bench(32);
  bench.submit(1, 5 * kBlock, true);
  EXPECT_EQ(bench.scheduler.adopt(SeqId{1}, 2, bench.now).size(), 2u);
  bench.ledger.reset_prefix();
  bench.scheduler.adopted(2, bench.now);
  bench.scheduler.check();
  EXPECT_EQ(bench.scheduler.matched_blocks(SeqId{1}), 0u);
  EXPECT_EQ(bench.ledger.stats().free, 32u);
}

// A held request that is cancelled goes; a choice that takes its place is not held.
TEST(Adoption, AHeldOneCanBeCancelled) {
  Bench bench(32);
  bench.submit(1, 3 * kBlock, true, 2);
  bench.scheduler.cancel(SeqId{1}, EndReason::kCancelled);
  EXPECT_EQ(bench.step(2), 3 * kBlock);
  EXPECT_FALSE(bench.scheduler.waits(SeqId{1}));
  while (!bench.scheduler.idle()) bench.step(2);
}

// Others go on past it.
TEST(Adoption, OthersPassAHeldOne) {
  Bench bench(32);
  bench.submit(1, kBlock, true);
  bench.submit(2, kBlock + 1, false, 1, 500);
  EXPECT_EQ(bench.step(2), kBlock + 1);
  EXPECT_TRUE(bench.scheduler.waits(SeqId{1}));
  EXPECT_FALSE(bench.scheduler.waits(SeqId{2}));
}

}  // namespace
}  // namespace tally::sched
