#include "sched/simulate/replay.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace tally::sched::simulate {
namespace {

Scenario scenario_of(Scheme scheme, uint32_t block_tokens = 64) {
  Scenario s;
  s.scheme = scheme;
  s.block_tokens = block_tokens;
  s.cost = {.fixed = 300, .weights = 9000, .row = 1200, .kv_decode = 1.2, .kv_prefill = 0.5};
  return s;
}

Trace mix(uint32_t requests, double rate, uint64_t seed = 1) {
  return *build_trace("mix", {.requests = requests, .rate = rate, .seed = seed});
}

// Everything a report says.
std::string text_of(const Report& r) {
  const auto sums = [](const SlotSums& s) {
    return fmt::format("{} {} {} {} {} {} {} {} {}\n", s.steps, s.stored, s.allocated, s.reserved, s.internal,
                       s.external, s.logical, s.running, s.waiting);
  };
  const auto shares = [](const Percentiles& p) {
    return fmt::format("{} {} {} {} {} {}\n", p.n, p.mean, p.p50, p.p95, p.p99, p.max);
  };
  std::string out =
      fmt::format("{} {} {} {} {} {} {} {} {}\n", r.finished, r.refusals(), r.steps, r.output_tokens,
                  r.prompt_tokens, r.prompt_rows, r.completion, r.running_max, r.gap_max_s);
  out += sums(r.slots) + shares(r.ttft_s) + shares(r.tpot_s) + shares(r.normalised_s);
  out += fmt::format("{} {} {} {} {} {}\n", r.counts.preemptions, r.counts.recomputed_tokens, r.counts.copies,
                     r.counts.copied_tokens, r.counts.prefix_queries_tokens, r.counts.prefix_hits_tokens);
  for (const Interval& i : r.intervals) out += fmt::format("{} {} ", i.end, i.output_tokens) + sums(i.slots);
  return out;
}

TEST(Percentiles, InterpolateBetweenRanks) {
  std::vector<double> values{4, 1, 3, 2};
  const Percentiles p = percentiles(values);
  EXPECT_EQ(p.n, 4U);
  EXPECT_DOUBLE_EQ(p.mean, 2.5);
  EXPECT_DOUBLE_EQ(p.p50, 2.5);
  EXPECT_DOUBLE_EQ(p.p95, 3.85);
  EXPECT_DOUBLE_EQ(p.p99, 3.97);
  EXPECT_DOUBLE_EQ(p.max, 4);
  std::vector<double> none, one{7};
  EXPECT_EQ(percentiles(none).n, 0U);
  EXPECT_DOUBLE_EQ(percentiles(one).p99, 7);
}

TEST(Replay, TheClockByHand) {
  Trace trace;
  trace.requests = {{.arrival = 0, .prompt = 100, .output = 3},
                    {.arrival = 10'000'000, .prompt = 10, .output = 1}};
  Scenario s = scenario_of(Scheme::kPaged);
  s.cost = {.fixed = 1000, .weights = 500, .row = 10, .kv_decode = 1, .kv_prefill = 0.1};
  const Report r = replay(trace, s, nullptr);
  EXPECT_EQ(r.finished, 2U);
  EXPECT_EQ(r.steps, 4U);
  EXPECT_EQ(r.slots.steps, 2U);
  // 1000 + 100 rows x 10 + 5050 positions x 0.1; then 1000 + 500 + 101, and 102, positions; the second
  // 1000 + 500 + 55 x 0.1.
  EXPECT_DOUBLE_EQ(r.ttft_s.max, 2505e-6);
  EXPECT_DOUBLE_EQ(r.ttft_s.p50, (2505e-6 + 1506e-6) / 2);
  EXPECT_DOUBLE_EQ(r.tpot_s.max, 3203e-6 / 2);
  EXPECT_EQ(r.tpot_s.n, 1U);
  EXPECT_DOUBLE_EQ(r.gap_max_s, 1602e-6);
  EXPECT_EQ(r.completion, 10'001'506);
  EXPECT_EQ(r.slots.stored, 203U);
  EXPECT_EQ(r.slots.allocated, 256U);
  EXPECT_EQ(r.slots.reserved, 1U);  // the row after the first of both
  EXPECT_EQ(r.slots.internal, 52U);
  EXPECT_EQ(r.output_tokens, 4U);
}

TEST(Replay, StepsCostWhatTheSchedulerPredicts) {
  const Trace trace = mix(60, 100);
  const Scenario s = scenario_of(Scheme::kPaged);
  const auto planner = make_planner(trace, s);
  for (size_t i = 0; i < 60; ++i) ASSERT_EQ(planner->submit(i, SeqId{i + 1}), Refusal::kNone);
  std::vector<Outcome> outcomes;
  Tick now = 0;
  for (int step = 0; !planner->idle(); ++step) {
    const StepPlan& plan = planner->plan(now);
    ASSERT_NEAR(static_cast<double>(step_ticks(plan, s.cost)), plan.predicted, 0.5 + 1e-6);
    outcomes.clear();
    for (const PlannedRows& group : plan.rows) outcomes.resize(outcomes.size() + group.outcomes());
    now += step_ticks(plan, s.cost);
    planner->commit(outcomes, now);
    ASSERT_LT(step, 10'000);
  }
}

TEST(Replay, TheSameTwice) {
  const Trace trace = *build_trace("bursty", {.requests = 300, .rate = 3, .seed = 5});
  for (const Scheme scheme : {Scheme::kPaged, Scheme::kReserve, Scheme::kMaxLength, Scheme::kPowerOfTwo}) {
    Scenario s = scenario_of(scheme);
    s.pool_tokens = 8192;
    const std::string first = text_of(replay(trace, s, nullptr));
    EXPECT_EQ(first, text_of(replay(trace, s, nullptr)));
    EXPECT_NE(first,
              text_of(replay(*build_trace("bursty", {.requests = 300, .rate = 3, .seed = 6}), s, nullptr)));
  }
}

// The waste experiment: step-weighted mean length 707 of the mix, so L / (L + (B - 1) / 2) for blocks of B,
// 707 / 2048 for the longest length, and what the lengths give for powers of two.
TEST(Replay, UtilisationOfTheMix) {
  struct Expected {
    Scheme scheme;
    uint32_t block_tokens;
    double percent;
  };
  constexpr Expected kExpected[] = {
      {Scheme::kPaged, 16, 99.0},      {Scheme::kPaged, 32, 97.9},   {Scheme::kPaged, 64, 95.7},
      {Scheme::kPaged, 128, 91.7},     {Scheme::kReserve, 64, 34.5}, {Scheme::kMaxLength, 64, 34.5},
      {Scheme::kPowerOfTwo, 64, 71.4},
  };
  const Trace trace = mix(1000, 1);
  for (const Expected& e : kExpected) {
    const Report r = replay(trace, scenario_of(e.scheme, e.block_tokens), nullptr);
    EXPECT_EQ(r.finished, 1000U);
    EXPECT_EQ(r.output_tokens, 99'000U);
    EXPECT_NEAR(100 * r.slots.utilisation(), e.percent, 1.0)
        << static_cast<int>(e.scheme) << ' ' << e.block_tokens;
    EXPECT_EQ(r.slots.stored + r.slots.reserved + r.slots.internal, r.slots.allocated);
  }
}

TEST(Replay, ReserveIsMaxLengthInBlocks) {
  const Trace trace = mix(400, 3);
  const Report blocks = replay(trace, scenario_of(Scheme::kReserve), nullptr);
  const Report extents = replay(trace, scenario_of(Scheme::kMaxLength), nullptr);
  EXPECT_NEAR(blocks.slots.utilisation(), extents.slots.utilisation(), 0.005);
  EXPECT_EQ(blocks.running_max, 16U);  // of 2,048 in a pool of 32,768
  EXPECT_EQ(extents.running_max, 16U);
  EXPECT_EQ(blocks.counts.preemptions, 0U);
  EXPECT_NEAR(blocks.output_rate(), extents.output_rate(), 0.02 * extents.output_rate());
}

TEST(Replay, PagedRunsMoreInTheSameBytes) {
  const Trace trace = mix(400, 20);
  Scenario s = scenario_of(Scheme::kPaged, 16);
  s.cost = {.fixed = 300, .weights = 9000};  // as many rows as one likes on one pass over the weights
  s.pool_tokens = 16'384;
  const Report paged = replay(trace, s, nullptr);
  s.scheme = Scheme::kMaxLength;
  const Report whole = replay(trace, s, nullptr);
  const auto running = [](const Report& r) {
    return static_cast<double>(r.slots.running) / static_cast<double>(r.slots.steps);
  };
  EXPECT_GT(running(paged), 2 * running(whole));
  EXPECT_GT(paged.output_rate(), 2 * whole.output_rate());
}

TEST(Replay, AnOvercommittedPoolPreemptsAndFinishes) {
  const Trace trace = mix(200, 50);
  for (const Scheme scheme : {Scheme::kPaged, Scheme::kPowerOfTwo}) {
    Scenario s = scenario_of(scheme, 16);
    s.pool_tokens = 4096;
    const Report r = replay(trace, s, nullptr);
    EXPECT_EQ(r.finished, 200U);
    EXPECT_EQ(r.output_tokens, 19'800U);
    EXPECT_GT(r.counts.preemptions, 0U);
    EXPECT_GT(r.counts.recomputed_tokens, 0U);
    EXPECT_GT(r.slots.allocated, r.slots.steps * 2048);
    // An end token is never computed: one row a sequence less, and what was lost again.
    EXPECT_GE(r.prompt_rows, trace.prompt_tokens());
  }
}

TEST(Replay, ExternalWasteIsOfPiecesOnly) {
  const Trace trace = mix(300, 50);
  Scenario s = scenario_of(Scheme::kPowerOfTwo);
  s.pool_tokens = 10'000;
  EXPECT_GT(replay(trace, s, nullptr).slots.external, 0U);
  for (const Scheme scheme : {Scheme::kPaged, Scheme::kReserve, Scheme::kMaxLength}) {
    s.scheme = scheme;
    EXPECT_EQ(replay(trace, s, nullptr).slots.external, 0U);
  }
}

TEST(Replay, SharedPrefixesAreComputedOnce) {
  const Trace trace = *build_trace("shared-prefix", {.requests = 200, .rate = 4, .seed = 1});
  Scenario s = scenario_of(Scheme::kPaged, 16);
  s.pool_tokens = 65'536;  // no one is preempted
  const Report on = replay(trace, s, nullptr);
  s.prefix_cache = false;
  const Report off = replay(trace, s, nullptr);
  EXPECT_EQ(off.prompt_rows, trace.prompt_tokens());
  EXPECT_EQ(off.counts.prefix_hits_tokens, 0U);
  EXPECT_EQ(on.prompt_rows + on.counts.prefix_hits_tokens,
            trace.prompt_tokens() + on.counts.recomputed_tokens);
  EXPECT_LT(on.prompt_rows, trace.prompt_tokens() / 7);
  EXPECT_LT(on.ttft_s.p50, off.ttft_s.p50 / 2);
  EXPECT_GT(on.slots.logical, on.slots.stored);
  EXPECT_EQ(on.output_tokens, off.output_tokens);
}

TEST(Replay, MooncakeChainsAreHits) {
  std::string text;
  for (int turn = 0; turn < 6; ++turn) {
    std::string ids = "1";
    for (int i = 1; i <= turn; ++i) ids += fmt::format(",{}", i + 1);
    text +=
        fmt::format("{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": 5, \"hash_ids\": [{}]}}\n",
                    turn * 100'000, 512 * (turn + 1), ids);
  }
  Scenario s = scenario_of(Scheme::kPaged);
  s.model_len_max = 4096;
  const Report r = replay(*parse_trace(text), s, nullptr);
  EXPECT_EQ(r.finished, 6U);
  // Each finds all blocks of the one before.
  EXPECT_EQ(r.counts.prefix_hits_tokens, 512U * (1 + 2 + 3 + 4 + 5));
}

TEST(Replay, ChoicesPayForThePromptOnce) {
  Trace trace;
  trace.requests = {{.prompt = 1000, .output = 20, .choices = 8}};
  const Report r = replay(trace, scenario_of(Scheme::kPaged), nullptr);
  EXPECT_EQ(r.finished, 1U);
  EXPECT_EQ(r.output_tokens, 160U);
  EXPECT_EQ(r.prompt_rows, 1000U);
  EXPECT_EQ(r.counts.copies, 7U);  // of the tail: every choice but the last
  EXPECT_EQ(r.running_max, 8U);
  EXPECT_EQ(r.ttft_s.n, 1U);
  EXPECT_EQ(r.tpot_s.n, 8U);
  EXPECT_GT(r.slots.logical, 4 * r.slots.stored);
  Scenario s = scenario_of(Scheme::kReserve);
  EXPECT_EQ(replay(trace, s, nullptr).finished, 1U);
  s.seqs_max = 4;
  EXPECT_EQ(replay(trace, s, nullptr).refused[static_cast<size_t>(Refusal::kTooManyChoices)], 1U);
}

TEST(Replay, StaticBatchingIsSlower) {
  const Trace trace = mix(300, 20);
  Scenario s = scenario_of(Scheme::kPaged);
  s.seqs_max = 16;
  const Report continuous = replay(trace, s, nullptr);
  s.batching = Batching::kStatic;
  const Report fixed = replay(trace, s, nullptr);
  EXPECT_EQ(fixed.output_tokens, continuous.output_tokens);
  EXPECT_GT(fixed.completion, continuous.completion);
  EXPECT_GT(fixed.steps, continuous.steps);
}

TEST(Replay, StepLatencyBoundsTheGap) {
  Trace trace;
  for (int i = 0; i < 8; ++i) trace.requests.push_back({.prompt = 20, .output = 400});
  trace.requests.push_back({.arrival = 3'000'000, .prompt = 4000, .output = 4});
  Scenario s = scenario_of(Scheme::kPaged);
  s.model_len_max = 8192;
  const Report off = replay(trace, s, nullptr);
  s.step_latency = 40'000;
  const Report on = replay(trace, s, nullptr);
  EXPECT_GT(off.gap_max_s, 0.4);
  EXPECT_LE(on.gap_max_s, 0.0401);
  EXPECT_EQ(on.output_tokens, off.output_tokens);
}

TEST(Replay, WhatNeverFitsIsRefusedAndCounted) {
  Trace trace;
  trace.requests = {
      {.prompt = 5000, .output = 10}, {.prompt = 1500, .output = 10}, {.prompt = 100, .output = 10}};
  Scenario s = scenario_of(Scheme::kPaged);
  s.pool_tokens = 1024;
  const Report r = replay(trace, s, nullptr);
  EXPECT_EQ(r.refused[static_cast<size_t>(Refusal::kPromptTooLong)], 1U);
  EXPECT_EQ(r.refused[static_cast<size_t>(Refusal::kPoolTooSmall)], 1U);
  EXPECT_EQ(r.finished, 1U);
  EXPECT_EQ(r.prompt_tokens, 100U);
}

TEST(Replay, MoreThanTheQueueHolds) {
  Trace trace;
  for (int i = 0; i < 1000; ++i) trace.requests.push_back({.prompt = 20, .output = 2});
  const Report r = replay(trace, scenario_of(Scheme::kPaged), nullptr);
  EXPECT_EQ(r.finished, 1000U);
  EXPECT_EQ(r.refusals(), 0U);
  EXPECT_GT(r.slots.waiting, r.slots.steps * 256);  // inside and outside
}

TEST(Replay, IntervalsAddUp) {
  const Report r = replay(mix(500, 1), scenario_of(Scheme::kPaged), nullptr);
  ASSERT_GT(r.intervals.size(), 8U);
  ASSERT_LE(r.intervals.size(), 32U);
  SlotSums sum;
  uint64_t tokens = 0;
  Tick before = 0;
  for (const Interval& i : r.intervals) {
    sum.add(i.slots), tokens += i.output_tokens;
    EXPECT_GT(i.end, before);
    before = i.end;
  }
  EXPECT_EQ(sum.steps, r.slots.steps);
  EXPECT_EQ(sum.stored, r.slots.stored);
  EXPECT_EQ(sum.allocated, r.slots.allocated);
  EXPECT_EQ(tokens, r.output_tokens);
  EXPECT_EQ(r.intervals.back().end, r.completion);
  for (size_t i = 1; i + 1 < r.intervals.size(); ++i)
    EXPECT_EQ(r.intervals[i].end - r.intervals[i - 1].end, r.intervals[0].end);
}

// Small pools, few seats, choices and shared prefixes, every scheme: all come to their end or are refused.
TEST(Replay, RandomTracesComeToTheirEnd) {
  uint64_t state = 1;
  const auto below = [&](uint64_t n) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<uint32_t>((state >> 33) % n);
  };
  uint64_t preemptions = 0, copies = 0, external = 0, refused = 0;
  for (int round = 0; round < 400; ++round) {
    Trace trace;
    trace.segments = {1, 2};
    Tick now = 0;
    for (uint32_t i = 0, n = 1 + below(40); i < n; ++i) {
      const uint32_t prompt = 1 + below(120), shared = below(2) == 0 ? 0 : below(prompt + 1);
      now += below(3) == 0 ? below(60'000) : 0;
      trace.requests.push_back({.arrival = now,
                                .prompt = prompt,
                                .output = 1 + below(60),
                                .choices = below(4) == 0 ? 1 + below(4) : 1,
                                .shared = shared,
                                .segment = below(2)});
    }
    Scenario s = scenario_of(static_cast<Scheme>(below(4)), 16U << below(3));
    s.batching = below(3) == 0 ? Batching::kStatic : Batching::kContinuous;
    s.pool_tokens = 128 + below(900);
    s.seqs_max = 1 + below(8);
    s.step_tokens = 1 + below(64);
    s.model_len_max = 64 + below(192);
    s.prefix_cache = below(2) == 0;
    s.step_latency = below(2) == 0 ? 0 : 12'000;
    const Report r = replay(trace, s, nullptr);
    ASSERT_EQ(r.finished + r.refusals(), trace.requests.size()) << round;
    ASSERT_EQ(r.slots.stored + r.slots.reserved + r.slots.internal, r.slots.allocated) << round;
    ASSERT_LE(r.slots.stored + r.slots.reserved, r.slots.allocated) << round;
    ASSERT_LE(r.slots.allocated + r.slots.external, r.slots.steps * s.pool_tokens) << round;
    ASSERT_LE(r.running_max, s.seqs_max) << round;
    preemptions += r.counts.preemptions, copies += r.counts.copies;
    external += r.slots.external, refused += r.refusals();
  }
  EXPECT_GT(preemptions, 100U);
  EXPECT_GT(copies, 100U);
  EXPECT_GT(external, 100U);
  EXPECT_GT(refused, 100U);
}

TEST(Replay, StopsWhenToldTo) {
  const Trace trace = mix(2000, 1);
  uint64_t calls = 0;
  const Report r = replay(trace, scenario_of(Scheme::kPaged), [&](uint64_t done) {
    EXPECT_LE(done, 2000U);
    return ++calls < 2;
  });
  EXPECT_EQ(calls, 2U);
  EXPECT_LT(r.finished, 2000U);
}

}  // namespace
}  // namespace tally::sched::simulate
