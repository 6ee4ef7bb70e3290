#include "measure/summary.h"

#include <gtest/gtest.h>

#include <vector>

namespace tally::measure {
namespace {

// Planned at 1, sent at 1.5, one token at each of `at`.
RequestRecord completed(uint32_t id, std::vector<double> at) {
  RequestRecord r;
  r.id = id;
  r.class_name = "short";
  r.outcome = Outcome::kCompleted;
  r.http_status = 200;
  r.planned_s = 1;
  r.sent_s = 1.5;
  for (const double t : at) r.events.push_back({t, 1});
  r.end_s = at.empty() ? 2 : at.back() + .25;
  r.prompt_tokens = 10;
  r.output_tokens = static_cast<uint32_t>(at.size());
  r.finish = "length";
  return r;
}

RequestRecord ended(uint32_t id, Outcome outcome, double end_s) {
  RequestRecord r = completed(id, {2});
  r.outcome = outcome;
  r.error = "timeout";
  r.end_s = end_s;
  return r;
}

TEST(RequestFigures, ByTheDefinitions) {
  const RequestFigures f = request_figures(completed(0, {2, 2.5, 3, 3.5, 6}));
  EXPECT_EQ(f.tokens, 5u);
  EXPECT_DOUBLE_EQ(*f.ttft_s, 1);
  EXPECT_DOUBLE_EQ(*f.ttft_sent_s, .5);
  EXPECT_DOUBLE_EQ(*f.ttst_s, .5);
  EXPECT_DOUBLE_EQ(*f.tpot_s, 1);
  EXPECT_DOUBLE_EQ(*f.itl_max_s, 2.5);
  EXPECT_DOUBLE_EQ(*f.e2e_s, 5);
  EXPECT_DOUBLE_EQ(*f.e2e_sent_s, 4.5);
  EXPECT_DOUBLE_EQ(*f.ntpot_s, 1);
  EXPECT_DOUBLE_EQ(*f.speed, 1);
  EXPECT_DOUBLE_EQ(*f.stall_s, 1);  // 2.5 - 3 x .5
  EXPECT_EQ(f.chunk_gaps_s, (std::vector{.5, .5, .5, 2.5}));
}

TEST(RequestFigures, OneTokenHasNoTimePerToken) {
  const RequestFigures f = request_figures(completed(0, {2}));
  EXPECT_TRUE(f.ttft_s && f.e2e_s && f.ntpot_s);
  EXPECT_FALSE(f.tpot_s || f.speed || f.itl_max_s || f.ttst_s || f.stall_s);
  EXPECT_TRUE(f.chunk_gaps_s.empty());
}

TEST(RequestFigures, AnAnswerInOnePieceHasAnEndOnly) {
  RequestRecord r = completed(0, {});
  r.output_tokens = 4;
  const RequestFigures f = request_figures(r);  // planned 1, sent 1.5, ended 2
  EXPECT_DOUBLE_EQ(*f.e2e_s, 1);
  EXPECT_DOUBLE_EQ(*f.e2e_sent_s, .5);
  EXPECT_DOUBLE_EQ(*f.ntpot_s, .25);
  EXPECT_FALSE(f.ttft_s || f.tpot_s || f.itl_max_s);
}

TEST(RequestFigures, TokensAreTheServersWord) {
  RequestRecord r = completed(0, {2, 3});
  r.output_tokens = 5;  // events carry several
  EXPECT_DOUBLE_EQ(*request_figures(r).tpot_s, .25);
  r.output_tokens.reset();
  r.events[1].tokens = 3;
  EXPECT_EQ(request_figures(r).tokens, 4u);
  r.events[0].tokens = r.events[1].tokens = 0;  // not said: one at least
  EXPECT_EQ(request_figures(r).tokens, 2u);
}

TEST(RequestFigures, OnlyOfWhatCompleted) {
  for (const Outcome outcome : {Outcome::kFailed, Outcome::kRefused, Outcome::kIncomplete}) {
    const RequestFigures f = request_figures(ended(0, outcome, 3));
    EXPECT_FALSE(f.ttft_s || f.tpot_s || f.e2e_s || f.itl_max_s);
  }
  EXPECT_FALSE(request_figures(completed(0, {})).ttft_s);  // completed without a token
}

TEST(Slo, AllLimitsMustBeMet) {
  const RequestRecord r = completed(0, {2, 2.5, 3, 3.5, 6});  // ttft 1, tpot 1, largest gap 2.5, e2e 5
  EXPECT_TRUE(meets(r, {}));
  EXPECT_TRUE(meets(r, {1, 1, 2.5, 5}));
  EXPECT_FALSE(meets(r, {.9, 1, 2.5, 5}));
  EXPECT_FALSE(meets(r, {1, .9, 2.5, 5}));
  EXPECT_FALSE(meets(r, {1, 1, 2.4, 5}));
  EXPECT_FALSE(meets(r, {1, 1, 2.5, 4.9}));
  EXPECT_TRUE(meets(completed(0, {2}), {1, .001, .001, {}}));  // no time per token, no gap
  EXPECT_FALSE(meets(ended(0, Outcome::kFailed, 2), {}));
}

TEST(Fluidity, CountsTokensBeforeTheirDeadline) {
  // Deadlines 2, 3, 4, 5, 6.
  EXPECT_DOUBLE_EQ(*fluidity(completed(0, {2, 3, 4, 5, 6}), 1), 1);
  EXPECT_DOUBLE_EQ(*fluidity(completed(0, {2, 2.1, 2.2, 5.5, 6}), 1), .8);
  EXPECT_DOUBLE_EQ(*fluidity(completed(0, {2, 7, 8, 9, 10}), 1), .2);
  RequestRecord r = completed(0, {2, 4});
  r.events[1].tokens = 4, r.output_tokens = 5;  // tokens 1 to 4 at 4: the first of them is late
  EXPECT_DOUBLE_EQ(*fluidity(r, 1), .8);
  EXPECT_FALSE(fluidity(ended(0, Outcome::kFailed, 2), 1).has_value());
}

std::vector<RequestRecord> hand_made() {
  std::vector<RequestRecord> out{completed(0, {2, 2.5, 3, 3.5, 6}), completed(1, {3}),
                                 completed(2, {2, 3, 5}),           ended(3, Outcome::kFailed, 4),
                                 ended(4, Outcome::kRefused, 1.1),  ended(5, Outcome::kIncomplete, 11)};
  out[1].class_name = out[3].class_name = "long";
  return out;
}

TEST(Figures, OfAHandMadeList) {
  const Slo slo{1.5, 2, 2, 4.5};
  const Figures f = figures_of(hand_made(), &slo);
  EXPECT_EQ(f.completed, 3u);
  EXPECT_EQ(f.failed, 1u);
  EXPECT_EQ(f.refused, 1u);
  EXPECT_EQ(f.incomplete, 1u);
  EXPECT_EQ(f.input_tokens, 30u);
  EXPECT_EQ(f.output_tokens, 9u);  // those of failures are no output
  EXPECT_DOUBLE_EQ(f.duration_s, 10);
  EXPECT_DOUBLE_EQ(f.request_throughput, .3);
  EXPECT_DOUBLE_EQ(f.output_throughput, .9);
  EXPECT_DOUBLE_EQ(f.total_token_throughput, 3.9);
  EXPECT_EQ(f.max_concurrent_requests, 6u);
  EXPECT_DOUBLE_EQ(f.max_output_tokens_per_s, 4);  // 3, 3.5, 3 and 3 fall into the third second
  EXPECT_DOUBLE_EQ(*f.goodput, .1);                // 0: a gap of 2.5; 1: ttft 2; 2 is good
  EXPECT_DOUBLE_EQ(*f.goodput_tokens, .3);
  EXPECT_DOUBLE_EQ(f.stall_s, 1);
  EXPECT_EQ(f.ttft.n, 3u);
  EXPECT_EQ(f.tpot.n, 2u);  // one request has one token
  EXPECT_EQ(f.itl.n, 6u);
  EXPECT_DOUBLE_EQ(f.ttft_planned.median, 1);
  EXPECT_DOUBLE_EQ(f.ttft.median, .5);
  EXPECT_DOUBLE_EQ(f.e2e_planned.median, 4);
  EXPECT_DOUBLE_EQ(f.itl_max.p50.value, 2.25);
  EXPECT_FALSE(f.itl_max.p50.high.has_value());
  EXPECT_FALSE(figures_of(hand_made()).goodput.has_value());
  EXPECT_EQ(figures_of({}).duration_s, 0);
}

TEST(Figures, ClassesAddUpToTheRun) {
  const Figures all = figures_of(hand_made());
  double throughput = 0;
  uint32_t requests = 0;
  for (const auto& [name, f] : figures_by_class(hand_made())) {
    throughput += f.output_throughput;
    requests += f.requests();
    EXPECT_DOUBLE_EQ(f.duration_s, all.duration_s);
  }
  EXPECT_DOUBLE_EQ(throughput, all.output_throughput);
  EXPECT_EQ(requests, all.requests());
}

// One request a second, each 4 s long with a token a second: in flight climbs to 4 and stays there.
std::vector<RequestRecord> steady_stream() {
  std::vector<RequestRecord> out;
  for (uint32_t i = 0; i < 20; ++i) {
    RequestRecord r = completed(i, {i + 1., i + 2., i + 3., i + 4.});
    r.planned_s = r.sent_s = i;
    r.end_s = i + 4.;
    out.push_back(r);
  }
  return out;
}

TEST(SteadyWindow, RunsFromMedianLoadToTheLastArrival) {
  const auto requests = steady_stream();
  const auto window = steady_window(requests);
  ASSERT_TRUE(window.has_value());
  EXPECT_DOUBLE_EQ(window->from_s, 3);
  EXPECT_DOUBLE_EQ(window->to_s, 19);
  const Figures whole = figures_of(requests), steady = figures_within(requests, *window);
  EXPECT_DOUBLE_EQ(whole.output_throughput, 80. / 23);  // ramps included
  EXPECT_NEAR(steady.output_throughput, 4, .3);
  EXPECT_EQ(steady.completed, 17u);  // arrived in the window
  EXPECT_EQ(steady.tpot.n, 17u);
  // A burst has no steady part.
  std::vector<RequestRecord> burst(3, completed(0, {2, 3}));
  EXPECT_FALSE(steady_window(burst).has_value());
  EXPECT_FALSE(steady_window({}).has_value());
}

TEST(Results, HaveTheKeysOthersRead) {
  const Slo slo{1.5, 2, 2, 4.5};
  const nlohmann::json r = results_json(figures_of(hand_made(), &slo));
  EXPECT_EQ(r["num_prompts"], 6);
  EXPECT_EQ(r["completed"], 3);
  EXPECT_DOUBLE_EQ(r["median_ttft_ms"].get<double>(), 500);
  EXPECT_DOUBLE_EQ(r["median_ttft_planned_ms"].get<double>(), 1000);
  EXPECT_DOUBLE_EQ(r["mean_e2e_planned_ms"].get<double>(), (5. + 2 + 4) / 3 * 1000);
  EXPECT_DOUBLE_EQ(r["request_goodput"].get<double>(), .1);
  for (const char* key :
       {"mean_itl_ms", "std_tpot_ms", "p50_e2el_ms", "p99_ttft_ms", "p95_itl_ms", "p90_tpot_ms"})
    EXPECT_TRUE(r[key].is_number()) << key;
  EXPECT_TRUE(r["ci95"]["p99_ttft_ms"][1].is_null());
  EXPECT_EQ(r["n"]["tpot"], 2);
  const nlohmann::json none = results_json(figures_of({}));
  EXPECT_TRUE(none["mean_ttft_ms"].is_null());
  EXPECT_TRUE(none["request_goodput"].is_null());
}

}  // namespace
}  // namespace tally::measure
