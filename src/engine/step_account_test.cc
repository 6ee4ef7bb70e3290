// What the account of steps makes of records: sums, and to what a pass is put down.
#include "engine/step_account.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace tally::engine {
namespace {

constexpr StepRoofs kMachine{.bytes_per_s = 10e9, .ops_per_s = 100e9};

uint64_t counted(const Histogram& h) {
  return std::accumulate(h.counts.begin(), h.counts.end(), uint64_t{0});
}

TEST(StepAccount, SumsTheWorkOfSteps) {
  StepAccount account(512);
  const StepRecord record{.prefill_rows = 3,
                          .decode_rows = 2,
                          .sequences = 4,
                          .weight_bytes = 100,
                          .kv_bytes = 20,
                          .activation_bytes = 7,
                          .kv_bytes_written = 5,
                          .flops = 1000};
  account.work(record);
  account.work(record);
  const Stats s = account.snapshot();
  EXPECT_EQ(s.flops, 2000u);
  EXPECT_EQ(s.weight_bytes_read, 200u);
  EXPECT_EQ(s.activation_bytes_read, 14u);
  EXPECT_EQ(s.kv_bytes_written, 10u);
  EXPECT_EQ(s.step_sequences, 8u);
}

TEST(StepAccount, PutsAPassDownToTheRoofThatAsksForMore) {
  StepAccount account(512);
  account.time({.weight_bytes = 9'000, .kv_bytes = 500, .activation_bytes = 600, .flops = 99'999}, 2,
               kMachine);
  account.time({.weight_bytes = 9'000, .kv_bytes = 500, .activation_bytes = 400, .flops = 99'999}, 3,
               kMachine);
  account.time({.weight_bytes = 9'000, .flops = 1}, 5, {});  // nothing is known
  account.time({.weight_bytes = 9'000, .flops = 1}, 5, {.bytes_per_s = 10e9});
  EXPECT_EQ(account.snapshot().bandwidth_s, 2);
  EXPECT_EQ(account.snapshot().compute_s, 3);
  EXPECT_EQ(account.snapshot().unbound_s, 10);
}

TEST(StepAccount, TellsWhatPredictionsWereWorth) {
  StepAccount account(512);
  account.time({.duration_us = 1000}, 0, {});  // none
  EXPECT_EQ(counted(account.snapshot().step_model_error), 0u);
  account.time({.duration_us = 1000, .predicted_us = 985}, 0, {});
  account.time({.duration_us = 1000, .predicted_us = 1150}, 0, {});
  const Histogram h = account.snapshot().step_model_error;
  EXPECT_EQ(h.counts[1], 1u) << ".015";
  EXPECT_EQ(h.counts[4], 1u) << ".15";
  EXPECT_NEAR(h.sum, .165, 1e-12);
}

TEST(StepAccount, PromptTokensThatWereComputed) {
  StepAccount account(512);
  Receipt receipt;
  receipt.prompt_tokens = 100, receipt.cached_tokens = 64, receipt.generated_tokens = 1;
  account.tokens(1, receipt, 0, 1000, false);
  account.tokens(1, receipt, 0, 1000, true);  // shares the prompt
  const Histogram h = account.snapshot().prefill_computed;
  EXPECT_EQ(counted(h), 1u);
  EXPECT_EQ(h.sum, 36);
}

// k tokens of one step are one gap of the step and k - 1 of none.
TEST(StepAccount, TokensOfOneStep) {
  StepAccount account(512);
  Receipt receipt;
  receipt.generated_tokens = 9;
  account.tokens(4, receipt, 1000, 31'000, false);
  const Stats s = account.snapshot();
  EXPECT_EQ(s.generation_tokens, 4u);
  EXPECT_EQ(counted(s.inter_token), 4u);
  EXPECT_EQ(s.inter_token.counts[0], 3u);
  EXPECT_NEAR(s.inter_token.sum, .03, 1e-12);
  EXPECT_EQ(counted(s.ttft), 0u);
}

TEST(StepAccount, DraftsByPlace) {
  StepAccount account(512);
  account.drafts(DraftSource::kLookup, 5, 2);
  account.drafts(DraftSource::kModel, 16, 16);
  account.drafts(DraftSource::kLookup, 3, 0);
  const Speculation s = account.snapshot().speculation;
  EXPECT_EQ(s.rounds, 3u);
  EXPECT_EQ(s.drafted, 24u);
  EXPECT_EQ(s.accepted, 18u);
  EXPECT_EQ(s.accepted_at[1], 2u);
  EXPECT_EQ(s.accepted_at[2], 1u);
  EXPECT_EQ(s.accepted_at[15], 1u);
  const auto of = [&](DraftSource source) { return s.by[static_cast<size_t>(source)]; };
  EXPECT_EQ(of(DraftSource::kLookup).drafted, 8u);
  EXPECT_EQ(of(DraftSource::kLookup).accepted, 2u);
  EXPECT_EQ(of(DraftSource::kModel).accepted, 16u);
  EXPECT_EQ(of(DraftSource::kConstraint).drafted, 0u);
}

// Quantiles over servers of both kinds are right where each has the other's edges.
TEST(StepAccount, EdgesAreVllmsAndFinerOnesBelow) {
  const Stats s = StepAccount(4096).snapshot();
  const auto has = [](const Histogram& h, std::initializer_list<double> edges) {
    return std::is_sorted(h.edges.begin(), h.edges.end()) &&
           std::includes(h.edges.begin(), h.edges.end(), edges.begin(), edges.end());
  };
  EXPECT_TRUE(has(s.ttft, {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                           1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560}));
  for (const Histogram* h : {&s.inter_token, &s.time_per_output_token})
    EXPECT_TRUE(
        has(*h, {.0005, .01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}));
  for (const Histogram* h : {&s.e2e, &s.queue, &s.prefill, &s.decode, &s.inference})
    EXPECT_TRUE(has(*h, {.0005, .3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,
                         20,    30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680}));
  for (const Histogram* h :
       {&s.prompt_tokens_per_request, &s.generation_tokens_per_request, &s.prefill_computed}) {
    EXPECT_TRUE(has(*h, {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000}));
    EXPECT_EQ(h->edges.back(), 2000) << "the largest such number within the context";
  }
  EXPECT_TRUE(has(s.iteration_tokens, {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}));
  for (const Histogram* h : {&s.block_lifetime, &s.block_idle, &s.block_reuse_gap})
    EXPECT_TRUE(has(*h, {.001, .01, .1, 1, 5, 10, 30, 60, 300, 900, 3600}));
}

TEST(StepAccount, TheLongestSequenceAndPrefillPerToken) {
  StepAccount account(512);
  Receipt r;
  r.prompt_tokens = 10, r.generated_tokens = 5, r.scheduled_us = 1, r.first_token_us = 100'001;
  r.last_us = 200'001;
  account.finished(Finish::kLength, r);
  r.generated_tokens = 2;
  account.finished(Finish::kStop, r);
  r.generated_tokens = 400;
  account.finished(Finish::kCancelled, r);
  const Stats s = account.snapshot();
  EXPECT_EQ(s.sequence_tokens_max, 15u);
  EXPECT_EQ(counted(s.prefill_per_token), 2u);
  EXPECT_NEAR(s.prefill_per_token.sum, .02, 1e-9);
}

}  // namespace
}  // namespace tally::engine
