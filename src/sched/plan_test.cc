#include "sched/plan.h"

#include "sched/testing/rig.h"

#include <gtest/gtest.h>

#include <map>

namespace tally::sched {
namespace {

using testing::FakeSampler;
using testing::Record;
using testing::Rig;

Config config_of(uint32_t seqs, uint32_t step_tokens) {
  Config config;
  config.seqs_max = seqs;
  config.step_tokens = step_tokens;
  config.model_len_max = 4096;
  return config;
}

Request request_of(uint32_t prompt, uint32_t max_tokens, int stream = 0) {
  Request request;
  for (uint32_t i = 0; i < prompt; ++i)
    request.prompt.push_back(TokenId{stream * 10'000 + static_cast<int>(i)});
  request.max_tokens = max_tokens;
  request.arrival = 1;
  return request;
}

void run(Rig& rig, Tick now = 10) {
  for (int i = 0; i < 20'000 && !rig.scheduler().idle(); ++i) {
    rig.step(now += 1000);
    rig.scheduler().check();
    ASSERT_EQ(rig.error(), "");
  }
  ASSERT_TRUE(rig.scheduler().idle());
}

// A crowd whose members share prefixes, so that caching, deferral and preemption all have something to do.
std::vector<Request> crowd() {
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    Request request = request_of(20 + 5 * static_cast<uint32_t>(i), 30, i % 3);
    request.prompt.back() = TokenId{500'000 + i};
    requests.push_back(std::move(request));
  }
  return requests;
}

using Streams = std::vector<std::vector<TokenId>>;

Streams streams_of(const Rig& rig) {
  Streams out;
  for (const Record& r : rig.records()) out.push_back(r.emitted);
  return out;
}

Streams together(const Config& config, const kv::LedgerConfig& ledger) {
  Rig rig(config, ledger);
  uint64_t seed = 0;
  for (Request& request : crowd()) rig.submit(std::move(request), FakeSampler{++seed, 0, 0});
  run(rig);
  return streams_of(rig);
}

// E1, E2, E3: the same tokens whatever else runs.
TEST(Equality, CacheChunksBlocksPoolsAndCompanyDoNotChangeTokens) {
  Streams alone;
  uint64_t seed = 0;
  for (Request& request : crowd()) {
    Rig rig(config_of(1, 4096), {64, 16, false, 64});
    rig.submit(std::move(request), FakeSampler{++seed, 0, 0});
    run(rig);
    alone.push_back(streams_of(rig).at(0));
  }
  for (const bool cache : {false, true}) {
    for (const uint32_t step_tokens : {16U, 32U, 512U}) {
      for (const uint32_t block : {1U, 16U, 64U}) {
        for (const uint32_t pool_tokens : {128U, 384U, 4096U}) {
          const kv::LedgerConfig ledger{pool_tokens / block, block, cache, cache ? 8U : 64U};
          EXPECT_EQ(together(config_of(8, step_tokens), ledger), alone)
              << "cache " << cache << " step " << step_tokens << " block " << block << " pool "
              << pool_tokens;
        }
      }
    }
  }
}

TEST(Scheduler, APlanThatWasPreemptedRepeatsExactly) {
  std::vector<uint64_t> logs;
  for (int i = 0; i < 2; ++i) {
    Rig rig(config_of(8, 32), {10, 16, true, 64});
    uint64_t seed = 0;
    for (Request& request : crowd()) rig.submit(std::move(request), FakeSampler{++seed, 0, 0});
    run(rig);
    EXPECT_GT(rig.scheduler().queue_stats().preemptions, 0U);
    logs.push_back(rig.log_hash());
  }
  EXPECT_EQ(logs[0], logs[1]);
}

TEST(Scheduler, TokensAndStatsStayReadableUntilThePlanAfterTheEnd) {
  Rig rig(config_of(2, 64), {16, 16, true, 64});
  const SeqId seq = rig.submit(request_of(20, 2), {});
  rig.step(1);
  rig.step(2);
  ASSERT_EQ(rig.record(seq).end, EndReason::kLength);
  EXPECT_EQ(rig.scheduler().tokens(seq).size(), 22U);
  EXPECT_EQ(rig.scheduler().state(seq), SeqState::kEnded);
  const SequenceStats stats = rig.scheduler().stats(seq);
  EXPECT_EQ(stats.prompt_tokens, 20U);
  EXPECT_EQ(stats.generated_tokens, 2U);
  EXPECT_EQ(stats.blocks, 2U);
  EXPECT_EQ(stats.blocks_peak, 2U);
  EXPECT_TRUE(rig.scheduler().table(seq).empty());
  rig.scheduler().cancel(seq, EndReason::kCancelled);  // ended: ignored
  rig.step(3);
  EXPECT_DEATH(rig.scheduler().tokens(seq), "no such sequence");
}

TEST(Scheduler, AnEndTokenIsKeptAndCounted) {
  Rig rig(config_of(2, 64), {16, 16, true, 64});
  const SeqId seq = rig.submit(request_of(20, 10), FakeSampler{1, 0, 3});
  for (Tick now = 1; now <= 3; ++now) rig.step(now);
  EXPECT_EQ(rig.record(seq).end, EndReason::kStop);
  EXPECT_EQ(rig.scheduler().stats(seq).generated_tokens, 3U);
  EXPECT_EQ(rig.scheduler().tokens(seq).size(), 23U);
}

TEST(Scheduler, RecomputedRowsAreToldInThePlanAndTheStats) {
  Rig rig(config_of(4, 64), {8, 16, true, 64});
  rig.submit(request_of(32, 40, 1), {});
  const SeqId b = rig.submit(request_of(32, 40, 2), {});
  Tick now = 0;
  while (rig.last_plan().preempted.empty()) rig.step(++now);
  const Preempted p = rig.last_plan().preempted.at(0);
  EXPECT_EQ(p.seq, b);
  EXPECT_EQ(p.blocks, 1U);
  EXPECT_EQ(p.tokens, 16U);
  EXPECT_EQ(rig.scheduler().state(b), SeqState::kPreempted);
  EXPECT_EQ(rig.scheduler().queue_stats().waiting, 1U);
  EXPECT_EQ(rig.scheduler().queue_stats().waiting_tokens, 0U);  // of those never scheduled
  while (rig.scheduler().state(b) == SeqState::kPreempted) rig.step(++now);
  const PlannedRows& group = rig.last_plan().rows.at(0);
  EXPECT_EQ(group.position, 48U);
  EXPECT_EQ(group.rows, 17U);
  EXPECT_EQ(group.recomputed, 16U);
  EXPECT_TRUE(group.wants_logits);
  EXPECT_FALSE(group.decode);
  EXPECT_TRUE(rig.last_plan().admitted.empty());  // scheduled before
  EXPECT_EQ(rig.scheduler().stats(b).preemptions, 1U);
  EXPECT_EQ(rig.scheduler().stats(b).recomputed_tokens, 16U);
}

TEST(Scheduler, RefusalsCarryTheirArithmetic) {
  Config config = config_of(1, 64);
  config.queue_max = 1;
  config.model_len_max = 200;
  Rig rig(config, {8, 16, true, 64});
  const auto admission = [&](uint32_t prompt, uint32_t max_tokens) {
    return rig.record(rig.submit(request_of(prompt, max_tokens), {})).admission;
  };
  const Admission too_long = admission(150, 51);
  EXPECT_EQ(too_long.refusal, Refusal::kPromptTooLong);
  EXPECT_EQ(too_long.needed, 201U);
  EXPECT_EQ(too_long.available, 200U);
  const Admission too_big = admission(120, 9);
  EXPECT_EQ(too_big.refusal, Refusal::kPoolTooSmall);
  EXPECT_EQ(too_big.needed, 9U);
  EXPECT_EQ(too_big.available, 8U);
  EXPECT_EQ(admission(100, 4'000'000'000U).refusal, Refusal::kPromptTooLong);  // no wrap
  EXPECT_EQ(admission(100, 0).max_tokens, 28U);
  EXPECT_EQ(admission(10, 1).refusal, Refusal::kNone);
  const Admission full = admission(10, 1);
  EXPECT_EQ(full.refusal, Refusal::kQueueFull);
  EXPECT_EQ(full.needed, 3U);
  EXPECT_EQ(full.available, 2U);
}

TEST(Scheduler, CancelEndsOnlyTheNamedOneWithTheGivenReason) {
  Rig rig(config_of(4, 64), {32, 16, true, 64});
  const SeqId a = rig.submit(request_of(20, 10, 1), {});
  const SeqId b = rig.submit(request_of(20, 10, 2), {});
  rig.step(1);
  rig.scheduler().cancel(SeqId{77}, EndReason::kCancelled);
  rig.cancel(a, EndReason::kShutdown);
  rig.cancel(a, EndReason::kCancelled);  // the first reason stands
  rig.step(2);
  EXPECT_EQ(rig.record(a).end, EndReason::kShutdown);
  run(rig);
  EXPECT_EQ(rig.record(b).emitted.size(), 10U);
}

TEST(SchedulerDeath, BrokenContractsEndTheProcess) {
  kv::Ledger ledger({8, 16, true, 64});
  Scheduler scheduler(config_of(2, 64), ledger);
  EXPECT_DEATH(scheduler.submit({}), "at least one token");
  Request request = request_of(10, 4);
  request.seq = SeqId{1};
  scheduler.submit(request);
  EXPECT_DEATH(scheduler.submit(request), "used twice");
  EXPECT_DEATH(scheduler.stats(SeqId{2}), "no such sequence");
  scheduler.plan(1);
  EXPECT_DEATH(scheduler.plan(2), "before the last one was committed");
  EXPECT_DEATH(scheduler.commit({}, 1), "an outcome for each");
  const Outcome two[2]{};
  EXPECT_DEATH(scheduler.commit(two, 1), "more outcomes");
}

// The recount must see what is wrong: a block taken behind the scheduler's back.
TEST(SchedulerDeath, TheRecountSeesABlockThatNoTableNames) {
  kv::Ledger ledger({8, 16, true, 64});
  Scheduler scheduler(config_of(2, 64), ledger);
  scheduler.check();
  ASSERT_TRUE(ledger.take(1).has_value());
  EXPECT_DEATH(scheduler.check(), "L2");
}

// Drafts that are all wrong leave nothing behind: after every step plan, ledger and tables are those of a run
// without any, block by block.
TEST(Scheduler, RejectedDraftsLeaveTheLedgerAsItWas) {
  for (const uint32_t blocks : {14u, 24u, 64u}) {
    Config config = config_of(6, 64);
    config.logits_rows_max = 60;
    const kv::LedgerConfig pool{blocks, 8, true};
    Rig plain(config, pool), drafted(config, pool);
    drafted.set_drafting({.most = 9, .right = 0});
    for (const Request& request : crowd()) {
      plain.submit(request, FakeSampler{.seed = request.prompt.size()});
      drafted.submit(request, FakeSampler{.seed = request.prompt.size()});
    }
    uint64_t drafts = 0;
    for (Tick now = 10; !plain.scheduler().idle(); now += 1000) {
      plain.step(now);
      drafted.step(now);
      ASSERT_EQ(drafted.error(), "");
      ASSERT_EQ(plain.last_plan().rows.size(), drafted.last_plan().rows.size());
      for (size_t i = 0; i < plain.last_plan().rows.size(); ++i) {
        const PlannedRows &a = plain.last_plan().rows[i], &b = drafted.last_plan().rows[i];
        ASSERT_EQ(raw(a.seq), raw(b.seq));
        ASSERT_EQ(a.rows, b.rows - b.drafts);
        drafts += b.drafts;
      }
      for (uint32_t id = 0; id < blocks; ++id) {
        const kv::BlockInfo a = plain.ledger().info(BlockId{id}), b = drafted.ledger().info(BlockId{id});
        ASSERT_EQ(a.state, b.state) << id;
        ASSERT_EQ(a.owners, b.owners) << id;
        ASSERT_EQ(a.fill, b.fill) << id;
      }
      for (const SeqId seq : plain.live()) {
        ASSERT_TRUE(std::ranges::equal(plain.scheduler().table(seq), drafted.scheduler().table(seq)));
        ASSERT_EQ(plain.scheduler().stats(seq).blocks_peak, drafted.scheduler().stats(seq).blocks_peak);
      }
    }
    EXPECT_TRUE(drafted.scheduler().idle());
    EXPECT_GT(drafts, 100u);
  }
}

// Whatever is drafted, and however much of it is right, the tokens are the same.
TEST(Scheduler, DraftsChangeNoToken) {
  Streams wanted;
  uint64_t steps_plain = 0;
  for (const uint32_t most : {0u, 1u, 3u, 16u}) {
    for (const uint32_t right : {0u, 1u, 2u, 16u}) {
      Config config = config_of(6, 64);
      config.logits_rows_max = 60;
      Rig rig(config, kv::LedgerConfig{20, 8, true});
      rig.set_drafting({.most = most, .right = std::min(most, right)});
      for (const Request& request : crowd()) rig.submit(request, FakeSampler{.seed = request.prompt.size()});
      uint64_t steps = 0;
      for (Tick now = 10; !rig.scheduler().idle(); now += 1000, ++steps) {
        rig.step(now);
        rig.scheduler().check();
        ASSERT_EQ(rig.error(), "");
      }
      if (wanted.empty()) wanted = streams_of(rig), steps_plain = steps;
      EXPECT_EQ(streams_of(rig), wanted) << most << ' ' << right;
      if (most == 3 && right == 16) {
        EXPECT_LT(steps, steps_plain);
      }
    }
  }
}

}  // namespace
}  // namespace tally::sched
