// Explanations of steps and requests whose answer is known by hand.
#include "measure/explain.h"

#include "measure/shown.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

namespace tally::measure {
namespace {

using nlohmann::json;

const RoofsInUse kRoofs{20e9, 400e9};  // a millisecond is 20 MB, and 0.4 G operations

struct MadeStep {
  uint64_t step = 1;
  int64_t t_us = 1'000'000;
  int64_t forward_us = 10'000, sample_us = 0, plan_us = 0;
  double bytes = 0, flops = 0;
  uint64_t prefill = 0, decode = 1, drafts = 0, accepted = 0;
  uint64_t running = 1, waiting = 0;
};

json made(const MadeStep& s) {
  return {{"step", s.step},
          {"t_us", s.t_us},
          {"duration_us", s.forward_us + s.sample_us + s.plan_us},
          {"prefill_tokens", s.prefill},
          {"decode_tokens", s.decode},
          {"draft_tokens", s.drafts},
          {"accepted_tokens", s.accepted},
          {"drafts",
           {{"lookup", {{"draft_tokens", s.drafts}, {"accepted_tokens", s.accepted}}},
            {"model", {{"draft_tokens", 0}, {"accepted_tokens", 0}}}}},
          {"sequences", 1},
          {"running", s.running},
          {"waiting", s.waiting},
          {"weight_bytes", s.bytes},
          {"kv_bytes", 0},
          {"activation_bytes", 0},
          {"flops", s.flops},
          {"kv_free", 90},
          {"kv_held", 10},
          {"kv_cached", 0},
          {"phases_us", {{"plan", s.plan_us}, {"linear", s.forward_us}, {"sample", s.sample_us}}}};
}

// Steps one after the other, `gap_us` between them.
std::vector<json> row_of(MadeStep step, size_t n, int64_t gap_us = 0) {
  std::vector<json> out;
  for (size_t i = 0; i < n; ++i) {
    out.push_back(made(step));
    ++step.step;
    step.t_us += step.forward_us + step.sample_us + step.plan_us + gap_us;
  }
  return out;
}

TEST(ExplainSteps, MemoryAlone) {  // 200 MB in 10 ms, all that the roof gives
  const StepsAccount a = account_steps(row_of({.bytes = 200e6, .flops = .4e9}, 5), kRoofs);
  EXPECT_NEAR(a.wall_s, .05, 1e-9);
  EXPECT_NEAR(a.by_bound[Bound::kBandwidth], .05, 1e-9);
  EXPECT_NEAR(a.of(StepKind::kDecode).efficiency(), 1, 1e-9);
  EXPECT_TRUE(a.of(StepKind::kDecode).is_bandwidth_bound());
  EXPECT_EQ(a.steps[0].by_bound.largest(), Bound::kBandwidth);
  EXPECT_EQ(a.decode_batches.at(1).steps, 5u);
}

TEST(ExplainSteps, OperationsAlone) {  // 4 G operations in 10 ms
  const StepsAccount a =
      account_steps(row_of({.bytes = 20e6, .flops = 4e9, .prefill = 64, .decode = 0}, 3), kRoofs);
  const StepGroup& g = a.of(StepKind::kPrefill);
  EXPECT_NEAR(a.by_bound[Bound::kCompute], a.wall_s, 1e-9);
  EXPECT_NEAR(g.operations_s, .03, 1e-9);
  EXPECT_NEAR(g.bandwidth_s, .003, 1e-9);
  EXPECT_FALSE(g.is_bandwidth_bound());
  EXPECT_EQ(g.prefill_tokens, 192u);
}

TEST(ExplainSteps, PredictionsStandBesideWhatStepsTook) {
  std::vector<json> steps = row_of({.forward_us = 10'000, .bytes = 100e6}, 6);
  for (size_t i = 0; i < 5; ++i) steps[i]["predicted_us"] = 8000;
  steps[5]["predicted_us"] = nullptr;  // not known
  Explanation e;
  e.steps = account_steps(steps, kRoofs);
  EXPECT_EQ(e.steps.of(StepKind::kDecode).predicted_steps, 5u);
  EXPECT_NEAR(e.steps.of(StepKind::kDecode).predicted_s, .04, 1e-9);
  EXPECT_NEAR(e.steps.of(StepKind::kDecode).predicted_wall_s, .05, 1e-9);
  const std::vector<Sentence> said = sentences_of(e);
  const auto at = std::find_if(said.begin(), said.end(), [](const Sentence& s) {
    return s.text.find("expected") != std::string::npos;
  });
  ASSERT_NE(at, said.end());
  EXPECT_EQ(at->text, "decode steps were expected to take 8.00 ms in the mean, and took 10.0 ms: 1.25 x");
  EXPECT_FALSE(at->is_predicted);
}

// The kernels' rate depends on the rows: a call of 64 rows takes 640 us, one of 8 takes 160 us.
TEST(ExplainSteps, KernelsOfTheWeightTypeAreTheRoofWhereTheyAreKnown) {
  const RoofsInUse roofs{20e9, 400e9, {{1, 20e9}, {8, 50e9}, {64, 100e9}}};
  EXPECT_EQ(roofs.ops_with_rows(1), 20e9);
  EXPECT_EQ(roofs.ops_with_rows(8), 50e9);
  EXPECT_NEAR(roofs.ops_with_rows(36), 36 / ((8 / 50. + 64 / 100.) / 2) * 1e9, 1);  // half-way in time
  EXPECT_EQ(roofs.ops_with_rows(4096), 100e9);
  EXPECT_EQ(kRoofs.ops_with_rows(8), 400e9);
  // 1 G operations of 64 rows: 10 ms by the kernels, 2.5 ms by the instruction.
  const auto steps = row_of({.bytes = 20e6, .flops = 1e9, .prefill = 64, .decode = 0}, 2);
  EXPECT_NEAR(account_steps(steps, roofs).of(StepKind::kPrefill).operations_s, .02, 1e-9);
  EXPECT_NEAR(account_steps(steps, kRoofs).of(StepKind::kPrefill).operations_s, .005, 1e-9);
  // A single row that its kernel holds up, not memory.
  const StepsAccount decode = account_steps(row_of({.bytes = 100e6, .flops = .2e9}, 2), roofs);
  EXPECT_FALSE(decode.of(StepKind::kDecode).is_bandwidth_bound());
}

TEST(ExplainSteps, NeitherRoof) {  // memory asks for 4 of 10 ms
  const StepsAccount a = account_steps(row_of({.bytes = 80e6, .flops = .1e9}, 5), kRoofs);
  EXPECT_NEAR(a.of(StepKind::kDecode).efficiency(), .4, 1e-9);
  EXPECT_NEAR(a.by_bound[Bound::kBandwidth] / a.wall_s, .4, 1e-9);
  EXPECT_NEAR(a.by_bound[Bound::kOverhead] / a.wall_s, .6, 1e-9);
  EXPECT_NEAR(a.bandwidth_overhead_s, a.by_bound[Bound::kOverhead], 1e-12);
  EXPECT_EQ(a.steps[0].by_bound.largest(), Bound::kOverhead);
}

TEST(ExplainSteps, FasterThanTheRoofCountsNoMoreThanItTook) {  // from the caches
  const StepsAccount a = account_steps(row_of({.bytes = 400e6}, 2), kRoofs);
  EXPECT_NEAR(a.by_bound[Bound::kBandwidth], a.wall_s, 1e-9);
  EXPECT_NEAR(a.of(StepKind::kDecode).efficiency(), 2, 1e-9);
}

TEST(ExplainSteps, SamplingAndPlanning) {
  const StepsAccount a = account_steps(
      row_of({.forward_us = 4000, .sample_us = 5000, .plan_us = 1000, .bytes = 80e6}, 4), kRoofs);
  EXPECT_NEAR(a.by_bound[Bound::kSampling] / a.wall_s, .5, 1e-9);
  EXPECT_NEAR(a.by_bound[Bound::kScheduling] / a.wall_s, .1, 1e-9);
  EXPECT_NEAR(a.by_bound[Bound::kBandwidth] / a.wall_s, .4, 1e-9);
  EXPECT_EQ(a.steps[0].by_bound.largest(), Bound::kSampling);
}

TEST(ExplainSteps, GapsAreIdleWithoutWorkAndSchedulingWithIt) {
  MadeStep step{.bytes = 200e6, .running = 0};
  const StepsAccount idle = account_steps(row_of(step, 3, 5'000), kRoofs);
  EXPECT_NEAR(idle.wall_s, .04, 1e-9);
  EXPECT_NEAR(idle.by_bound[Bound::kIdle], .01, 1e-9);
  step.running = 2;
  EXPECT_NEAR(account_steps(row_of(step, 3, 5'000), kRoofs).by_bound[Bound::kScheduling], .01, 1e-9);
  step.running = 0, step.waiting = 1;
  EXPECT_NEAR(account_steps(row_of(step, 3, 5'000), kRoofs).by_bound[Bound::kScheduling], .01, 1e-9);
}

TEST(ExplainSteps, TheWindowOfAWatchIsItsWall) {
  const std::vector<json> steps = row_of({.t_us = 2'000'000, .bytes = 200e6, .running = 0}, 2);
  const StepsAccount a = account_steps(steps, kRoofs, Window{1.5, 3.5});
  EXPECT_NEAR(a.wall_s, 2, 1e-9);
  EXPECT_NEAR(a.by_bound[Bound::kIdle], 1.98, 1e-9);
  const StepsAccount nothing = account_steps({}, kRoofs, Window{1, 2});
  EXPECT_NEAR(nothing.by_bound[Bound::kIdle], 1, 1e-12);
}

TEST(ExplainSteps, LostStepsAreCountedAndTheirTimeIsNot) {
  std::vector<json> steps = row_of({.bytes = 200e6}, 2);
  steps.push_back(made({.step = 10, .t_us = 9'000'000, .bytes = 200e6}));
  const StepsAccount a = account_steps(steps, kRoofs);
  EXPECT_EQ(a.missing, 7u);
  EXPECT_NEAR(a.wall_s, .03, 1e-9);
}

TEST(ExplainSteps, WithoutRoofsAPassIsAPass) {
  const StepsAccount a = account_steps(row_of({.sample_us = 10'000, .bytes = 200e6}, 2), {});
  EXPECT_NEAR(a.by_bound[Bound::kForward] / a.wall_s, .5, 1e-9);
  EXPECT_EQ(a.by_bound[Bound::kBandwidth], 0);
}

TEST(ExplainSteps, WhatIsNoStepIsLeftOut) {
  std::vector<json> steps = {nullptr,
                             3,
                             json::object(),
                             {{"step", 1}, {"t_us", 1}},
                             {{"step", -1}, {"t_us", 5}, {"duration_us", 1}, {"phases_us", json::object()}}};
  json odd = made({});
  odd["phases_us"]["linear"] = "long", odd["kv_bytes"] = -5, odd["flops"] = nullptr, odd["running"] = 1e300;
  steps.push_back(odd);
  const StepsAccount a = account_steps(steps, kRoofs);
  ASSERT_EQ(a.steps.size(), 1u);
  EXPECT_NEAR(a.by_bound[Bound::kOverhead], .01, 1e-9);  // the time is there, what it was for is not
}

// --- requests

RequestRecord request(uint32_t id, double sent_s, double queue_s, double prefill_s, double decode_s) {
  RequestRecord r;
  r.id = id, r.class_name = id % 2 == 0 ? "long" : "short";
  r.outcome = Outcome::kCompleted;
  r.planned_s = r.sent_s = sent_s;
  const double first = sent_s + queue_s + prefill_s;
  r.events = {{first, 1}, {first + decode_s, 9}};
  r.end_s = first + decode_s + .01;
  r.prompt_tokens = 100 * id, r.output_tokens = 10;
  r.receipt = {{"queue_ms", queue_s * 1e3},
               {"prefill_ms", prefill_s * 1e3},
               {"decode_ms", decode_s * 1e3},
               {"preemptions", 1}};
  return r;
}

TEST(ExplainRequests, StagesSumToE2e) {
  std::vector<RequestRecord> requests{request(1, 0, .1, .2, .7), request(2, 0, 0, .5, .5)};
  requests[1].events.back().at_s += .25;  // which no stage tells
  const RequestsAccount a = account_requests(requests);
  EXPECT_EQ(a.with_receipt, 2u);
  EXPECT_NEAR(a.all.e2e_s, 2.25, 1e-9);
  double sum = 0;
  for (const double s : a.all.seconds) sum += s;
  EXPECT_NEAR(sum, 2.25, 1e-9);
  EXPECT_NEAR(a.all.seconds.back(), .25, 1e-9);  // client
  EXPECT_NEAR(a.by_class.at("short").seconds[0], .1, 1e-9);
  EXPECT_EQ(a.by_class.at("long").requests, 1u);
}

TEST(ExplainRequests, WhoStalledWhom) {
  // 5 waits .9 s for its first token, while 4 is prefilled for .8 s of it and 2 for .1 s; 7 came later.
  const std::vector<RequestRecord> requests{request(2, .0, 0, .2, .1), request(4, .0, .2, .8, .1),
                                            request(5, .1, .8, .1, .4), request(7, 2, 0, .1, .1)};
  const RequestsAccount a = account_requests(requests);
  ASSERT_EQ(a.worst_ttft.size(), 3u);
  const WaitedRequest& worst = a.worst_ttft[1];
  EXPECT_EQ(a.worst_ttft[0].id, 4u);  // 1 s
  EXPECT_EQ(worst.id, 5u);
  EXPECT_NEAR(worst.wait_s, .9, 1e-9);
  ASSERT_EQ(worst.culprits_all, 2u);
  EXPECT_EQ(worst.culprits[0].id, 4u);
  EXPECT_EQ(worst.culprits[0].prompt_tokens, 400u);
  EXPECT_NEAR(worst.culprits[0].overlap_s, .8, 1e-9);
  EXPECT_NEAR(worst.culprits[1].overlap_s, .1, 1e-9);
  EXPECT_EQ(worst.preemptions, 1u);
  EXPECT_EQ(a.worst_gap[0].id, 5u);  // .4 s between its two events
  EXPECT_EQ(a.slowest[0].id, 5u);
}

TEST(ExplainRequests, WhatTheEngineDidMeanwhile) {
  RequestsAccount a = account_requests(std::vector<RequestRecord>{request(1, 1, .1, .2, .7)});
  std::vector<json> steps = {
      made({.t_us = 5'900'000, .forward_us = 200'000, .prefill = 64}),  // the half of it
      made({.step = 2, .t_us = 6'100'000, .forward_us = 100'000, .prefill = 32}),
      made({.step = 3, .t_us = 6'400'000, .prefill = 16}), nullptr};  // after the first token
  add_engine_steps(a, steps, 5e6);
  const StepsMeanwhile& engine = a.worst_ttft.at(0).engine.value();
  EXPECT_EQ(engine.steps, 2u);
  EXPECT_EQ(engine.prefill_tokens, 96u);
  EXPECT_NEAR(engine.wall_s, .2, 1e-9);
  EXPECT_EQ(a.worst_gap.at(0).engine->steps, 1u);
}

TEST(ExplainRequests, WithoutReceiptsThereAreNoStages) {
  std::vector<RequestRecord> requests{request(1, 0, .1, .2, .7)};
  requests[0].receipt = nullptr;
  const RequestsAccount a = account_requests(requests);
  EXPECT_EQ(a.completed, 1u);
  EXPECT_EQ(a.with_receipt, 0u);
  EXPECT_NEAR(a.worst_ttft[0].wait_s, .3, 1e-9);
  requests[0].outcome = Outcome::kFailed;
  EXPECT_TRUE(account_requests(requests).worst_ttft.empty());
}

// --- sentences

TEST(ExplainWords, ThreeDigits) {
  const std::pair<double, const char*> cases[] = {{0, "0"},        {.0123, "0.012"}, {.9996, "1.00"},
                                                  {1.234, "1.23"}, {9.996, "10.0"},  {99.97, "100"},
                                                  {1234, "1234"},  {-12.34, "-12.3"}};
  for (const auto& [value, text] : cases) EXPECT_EQ(three_digits(value), text);
}

Explanation explanation(std::vector<json> steps) {
  Explanation e;
  e.roofs.bytes_per_s = {{1, 20e9}, {2, 20e9}};
  e.in_use = kRoofs;
  e.server.threads = 2;
  e.steps = account_steps(steps, kRoofs);
  e.sentences = sentences_of(e);
  return e;
}

// The first sentence with this in it; "": none.
std::string sentence(const Explanation& e, const std::string& part) {
  for (const Sentence& s : e.sentences)
    if (s.text.find(part) != std::string::npos) return s.text;
  return "";
}

TEST(ExplainWords, DecodeThatMemoryBounds) {
  const Explanation e = explanation(row_of({.forward_us = 10'000, .bytes = 186e6, .flops = .1e9}, 10));
  EXPECT_EQ(e.sentences[0].text, "decode is bandwidth bound: 18.6 of 20.0 GB/s (93 %)");
  EXPECT_EQ(sentence(e, "batch"), "batch 1 -> 4 would give about 4.00 x tokens a second");
  EXPECT_EQ(sentence(e, "threads"), "more threads will not help: 2 are all that this machine's cores carry");
  EXPECT_TRUE(e.sentences[1].is_predicted);
}

TEST(ExplainWords, ABatchByTheCostOfRowsAndByWhatWasSeen) {
  std::vector<json> steps = row_of({.bytes = 190e6, .flops = .1e9}, 10);
  for (const json& s : row_of(
           {.step = 11, .t_us = 2'000'000, .forward_us = 12'500, .bytes = 190e6, .flops = .4e9, .decode = 4},
           5))
    steps.push_back(s);
  Explanation e = explanation(steps);
  e.server.row_cost = {1, 1.1, 1.3, 1.6, 2, 2.4, 2.8, 3.2, 3.6};
  e.server.settings["max-seqs"] = "8";
  e.sentences = sentences_of(e);  // 30 rows in 15 steps: 2 a step; 8 rows cost 3.2 / 1.1 as much
  EXPECT_EQ(sentence(e, "batch"), "batch 2 -> 8 would give about 1.38 x tokens a second");
  e.server.settings["max-seqs"] = "4";
  e.steps.decode_batches[2] = {10, .1};
  e.sentences = sentences_of(e);
  EXPECT_EQ(sentence(e, "batch"),
            "batch 2 -> 4 would give about 1.38 x tokens a second; here steps of 4 rows gave 1.60 x "
            "those of 2");
}

TEST(ExplainWords, WhyThereAreDraftsOrNot) {
  Explanation e = explanation(row_of({.bytes = 190e6, .flops = .1e9, .drafts = 4, .accepted = 3}, 10));
  EXPECT_EQ(sentence(e, "speculation"), "");  // a server that does not tell
  e.server.row_cost = {1, 1.1, 1.3};
  e.server.settings["speculate"] = "lookup";
  e.sentences = sentences_of(e);
  EXPECT_EQ(
      sentence(e, "speculation"),
      "speculation is on: 75 % of 40 drafted tokens were right (75 % of 40 by lookup), 4.00 tokens for each "
      "decode row; a row more in steps of 5 costs 1.12 x");
  Explanation none = explanation(row_of({.bytes = 190e6, .flops = .1e9}, 10));
  none.server.row_cost = e.server.row_cost, none.server.settings = e.server.settings;
  none.sentences = sentences_of(none);
  EXPECT_EQ(sentence(none, "speculation"),
            "speculation is on and drafted nothing: nothing was there to copy, or it did not pay; a row more "
            "in steps of 1 costs 1.10 x");
  none.server.settings["speculate"] = "off";
  none.sentences = sentences_of(none);
  EXPECT_EQ(sentence(none, "speculation"),
            "nothing is drafted, for speculation is off: a row more in steps of 1 costs 1.10 x, which pays "
            "where answers quote their prompts and more than 10 % of the drafts are right");
  EXPECT_EQ(none.sentences.back().flag, "--speculate lookup");
}

TEST(ExplainWords, StreamedWeightsAreBoundByTheDiskWhereTheyAre) {
  // Passes of 10 ms; memory asks for a half of that.
  Explanation e = explanation(row_of({.forward_us = 10'000, .bytes = 100e6, .flops = .1e9}, 10));
  e.server.streamed = {14, 40'000'000, 5e9};
  e.sentences = sentences_of(e);
  EXPECT_EQ(e.sentences[0].text,
            "decode is bound by the disk: each pass reads 14 layers, 40.0 MB, which 5.00 GB/s bring to 125 "
            "tokens a "
            "second; measured 100 (80 %)");
  EXPECT_EQ(e.sentences[0].evidence["predicted_tokens_per_s"], 125);
  EXPECT_EQ(sentence(e, "neither roof"), "");
  e.server.streamed.bytes_per_s = 10e9;  // the disk could do more than twice as many
  e.sentences = sentences_of(e);
  EXPECT_EQ(sentence(e, "by the disk"), "");
  EXPECT_NE(sentence(e, "neither roof"), "");
}

TEST(ExplainWords, NeitherRoofSaysWhatIsLost) {
  const Explanation e = explanation(row_of({.bytes = 80e6, .flops = .1e9}, 5));
  EXPECT_EQ(e.sentences[0].text,
            "decode is at neither roof: 60 % of the forward time lost; memory asks for 40 % of it (8.00 of "
            "20.0 GB/s), "
            "operations for 2 %; it went to linear 100 %");
}

TEST(ExplainWords, PrefillThatOperationsBound) {
  const Explanation e = explanation(row_of({.bytes = 20e6, .flops = 3.2e9, .prefill = 64, .decode = 0}, 5));
  EXPECT_EQ(e.sentences[0].text, "prefill is compute bound: 320 of 400 Gop/s (80 %)");
}

TEST(ExplainWords, SamplingIdleThreadsKvAndMixedSteps) {
  EXPECT_EQ(
      sentence(explanation(row_of({.forward_us = 4000, .sample_us = 6000, .bytes = 80e6}, 5)), "sampling")
          .substr(0, 35),
      "sampling takes 60 % of the time: gr");
  EXPECT_EQ(sentence(explanation(row_of({.bytes = 200e6, .running = 0}, 5, 10'000)), "no work"),
            "the engine had no work 44 % of the time: more load would fit");
  Explanation e = explanation(row_of({.bytes = 190e6, .flops = .1e9}, 5));
  e.roofs.bytes_per_s = {{1, 20e9}, {2, 36e9}}, e.server.threads = 1;
  e.sentences = sentences_of(e);
  EXPECT_EQ(sentence(e, "threads"),
            "2 threads instead of 1 would give decode about 1.80 x: they read 36.0 instead of 20.0 GB/s");
  std::vector<json> deep = row_of({.bytes = 100e6, .flops = .1e9}, 5);
  for (json& s : deep) s["kv_bytes"] = 100e6, s["phases_us"] = {{"linear", 5000}, {"attention", 5000}};
  e = explanation(deep);
  e.server.kv_type = "bf16";
  e.sentences = sentences_of(e);
  EXPECT_EQ(sentence(e, "KV cache").substr(0, 105),
            "the KV cache is 50 % of what a decode step reads; int8 instead of bf16 would give decode about "
            "1.32 x, an");
  std::vector<json> mixed = row_of({.bytes = 190e6}, 5);
  for (const json& s :
       row_of({.step = 6, .t_us = 1'050'000, .forward_us = 80'000, .bytes = 190e6, .prefill = 64}, 5))
    mixed.push_back(s);
  e = explanation(mixed);
  EXPECT_NE(sentence(e, "waits 8.00 x as long"), "");
  EXPECT_EQ(e.sentences.back().flag, "--step-latency 30");
}

TEST(ExplainWords, WhatTheCapCost) {
  Explanation e = explanation(row_of({.bytes = 190e6}, 5));
  e.cap = {0, 0, 0};
  e.sentences = sentences_of(e);
  EXPECT_EQ(
      e.sentences.back().text,
      "the memory cap cost nothing: no preemption, no refusal, at most 10 % of the KV blocks were held");
  e.cap = {3, 1, 2};
  e.sentences = sentences_of(e);
  EXPECT_EQ(
      e.sentences.back().text,
      "the memory cap cost 3 preemptions, 1 tokens computed again (20.0 % of all rows), 2 requests refused");
}

TEST(ExplainRun, ReadsAStoredRunAndItsRoofs) {
  measure::Run run;
  run.head = {{"schema", 1},
              {"status", "complete"},
              {"valid", true},
              {"machine",
               {{"roof_bytes_per_s", {{"2", 20e9}}}, {"roof_ops_per_s", {{"int8", 400e9}, {"f32", 100e9}}}}},
              {"model", {{"path_basename", "m"}, {"kv_type", "int8"}, {"weight_type", "Q4_1"}}},
              {"settings",
               {{"settings", {{"threads", {{"value", ""}}}}},
                {"weight_stream", {{"layers", 3}, {"pass_bytes", 1000}, {"predicted_bytes_per_s", 2e9}}},
                {"tuning", {{{"type", "q4_1"}, {"row_cost", {1, 1.5}}}}}}},
              {"results", {{"preemptions", 0}, {"refused", 0}}}};
  run.steps = row_of({.bytes = 186e6, .flops = .1e9}, 10);
  run.requests = {request(1, 0, .1, .2, .7)};
  const std::string parent = testing::TempDir() + "explain-" + std::to_string(::getpid());
  const auto path = store_run(run, parent);
  ASSERT_TRUE(path) << path.error().message;
  const auto e = explain_run(*path, [] { return std::optional<Roofs>(); });
  ASSERT_TRUE(e) << e.error().message;
  EXPECT_EQ(e->server.threads, 2u);
  EXPECT_EQ(e->server.row_cost.size(), 2u);
  EXPECT_EQ(e->server.streamed.layers, 3u);
  EXPECT_EQ(e->server.streamed.pass_bytes, 1000u);
  EXPECT_EQ(e->server.streamed.bytes_per_s, 2e9);
  EXPECT_EQ(e->in_use.bytes_per_s, 20e9);
  EXPECT_EQ(e->in_use.ops_per_s, 400e9);
  EXPECT_EQ(e->roofs_source, "told by the server");
  EXPECT_EQ(e->sentences[0].text, "decode is bandwidth bound: 18.6 of 20.0 GB/s (93 %)");
  const json page = explanation_json(*e, true);
  double sum = 0;
  for (const auto& [name, share] : page["shares"].items()) sum += share.get<double>();
  EXPECT_NEAR(sum, 1, 1e-9);
  EXPECT_EQ(page["step_times"].size(), 10u);
  EXPECT_EQ(page["step_times"][0]["bound"], "bandwidth");
  EXPECT_FALSE(explain_run(parent + "/none", [] { return std::optional<Roofs>(); }));
  std::filesystem::remove_all(parent);
}

}  // namespace
}  // namespace tally::measure
