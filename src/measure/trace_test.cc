#include "measure/trace.h"

#include "measure/run_test_support.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace tally::measure {
namespace {

using nlohmann::json;

// Requests of make_run, each served by a prefill step and one that decodes; the server's clock is 7 s ahead.
Run served(uint32_t requests) {
  measure::Run run = make_run({.requests = requests});
  run.head["clock"] = {{"server_us_at_0", 7'000'000}, {"error_us", 50}};
  uint64_t number = 0;
  const auto step = [&](double from_s, double to_s, int prefill, int decode) {
    run.steps.push_back({{"step", ++number},
                         {"t_us", 7e6 + from_s * 1e6},
                         {"duration_us", (to_s - from_s) * 1e6},
                         {"prefill_tokens", prefill},
                         {"decode_tokens", decode},
                         {"running", 1},
                         {"waiting", 0}});
  };
  for (RequestRecord& r : run.requests) {
    r.receipt = {{"tokenize_ms", 1}, {"queue_ms", 4}};
    const double first_s = r.events.front().at_s, last_s = r.events.back().at_s;
    step(r.sent_s + .005, first_s, 100, 0);
    step(first_s, last_s, 0, 19);
  }
  return run;
}

json parsed(const Trace& trace) { return json::parse(trace.json)["traceEvents"]; }

// Every b has its e in the order of a stack, slices of a track nest, time never runs back, tracks have names.
void expect_sound(const json& events) {
  std::map<std::string, std::vector<std::string>> open;
  std::map<int, std::vector<double>> slices;  // ends of those under way, by process
  std::set<int> named;
  double last = 0;
  for (const json& e : events) {
    ASSERT_GE(e["ts"].get<double>(), last);
    last = e["ts"];
    if (e["name"] == "thread_name") named.insert(e["pid"].get<int>());
    ASSERT_TRUE(named.contains(e["pid"]) || e["ph"] == "M") << e;
    if (e["ph"] == "X") {
      std::vector<double>& ends = slices[e["pid"]];
      const double end = last + e["dur"].get<double>();
      while (!ends.empty() && ends.back() <= last + 1e-6) ends.pop_back();
      ASSERT_TRUE(ends.empty() || end <= ends.back() + 1e-6) << e;
      ends.push_back(end);
    }
    if (e["ph"] == "b") open[e["id"]].push_back(e["name"]);
    if (e["ph"] != "e") continue;
    ASSERT_FALSE(open[e["id"]].empty());
    ASSERT_EQ(json(open[e["id"]].back()), e["name"]);
    open[e["id"]].pop_back();
  }
  for (const auto& [id, names] : open) EXPECT_TRUE(names.empty()) << id;
}

TEST(Trace, PutsRequestsAndStepsOnOneTimeline) {
  const measure::Run run = served(20);
  const Trace trace = trace_of(run, {.name = "n"});
  const json events = parsed(trace);
  EXPECT_EQ(events.size(), trace.events);
  expect_sound(events);
  std::map<uint32_t, double> sent, arrived;
  std::map<double, const json*> steps;
  size_t phases = 0;
  for (const json& e : events) {
    if (e["ph"] == "s") sent[e["id"]] = e["ts"];
    if (e["ph"] == "f") arrived[e["id"]] = e["ts"];
    if (e["ph"] == "X" && e["pid"] == 2) steps[e["ts"]] = &e;
    phases += e["ph"] == "b" && (e["name"] == "tokenize" || e["name"] == "queue" || e["name"] == "prefill" ||
                                 e["name"] == "decode");
  }
  EXPECT_EQ(phases, 80u);
  EXPECT_EQ(steps.size(), 40u);
  ASSERT_EQ(sent.size(), 20u);
  for (const RequestRecord& r : run.requests) {
    EXPECT_NEAR(sent[r.id], r.sent_s * 1e6, .001);
    EXPECT_NEAR(arrived[r.id], (r.sent_s + .005) * 1e6, 1);  // its own prefill step begins there
    const auto step = std::prev(steps.upper_bound(arrived[r.id]));
    EXPECT_EQ((*step->second)["name"], "prefill");
    EXPECT_LE(arrived[r.id], step->first + (*step->second)["dur"].get<double>());
  }
}

// A burst: sent within less than the slice that shows a sending lasts; and a step whose clock ran ahead.
TEST(Trace, SlicesOfATrackDoNotOverlap) {
  measure::Run run = served(6);
  for (uint32_t i = 0; i < 6; ++i) run.requests[i].sent_s = run.requests[i].planned_s = .5 + i / 2 * 4e-7;
  run.steps[1]["duration_us"] = 1e6;
  const json events = parsed(trace_of(run, {}));
  expect_sound(events);
  std::map<double, int> sendings;
  for (const json& e : events)
    if (e["ph"] == "X" && e["pid"] == 1) ++sendings[e["dur"]];
  EXPECT_EQ(sendings, (std::map<double, int>{{.4, 4}, {1, 2}}));
}

TEST(Trace, StartsAtZeroWhateverTheClocksSay) {
  measure::Run run = served(3);
  run.head["clock"]["server_us_at_0"] = 9'000'000;  // steps 2 s before the run
  const json events = parsed(trace_of(run, {}));
  expect_sound(events);
  double first_request = -1;
  for (const json& e : events)
    if (e["ph"] == "b" && first_request < 0) first_request = e["ts"];
  EXPECT_NEAR(first_request, 2e6 - 5e3, 1);
}

TEST(Trace, KeepsWhatMattersBelowItsLimit) {
  const measure::Run run = served(24);
  const size_t whole = trace_of(run, {}).json.size();
  size_t before = 0;
  for (const double share : {.9, .6, .3, .05}) {
    const TraceOptions options{.name = "",
                               .bytes_max = static_cast<uint64_t>(share * static_cast<double>(whole))};
    const Trace trace = trace_of(run, options);
    EXPECT_LE(trace.json.size(), options.bytes_max);
    expect_sound(parsed(trace));
    const size_t dropped = trace.dropped_counters + trace.dropped_steps + trace.dropped_requests;
    EXPECT_GT(dropped, before);
    before = dropped;
    if (trace.dropped_steps > 0) {
      EXPECT_EQ(trace.dropped_counters, 48u);  // they go first
    }
    if (trace.dropped_requests > 0) {
      EXPECT_EQ(trace.dropped_steps, 48u);
    }
    EXPECT_EQ(json::parse(trace.json)["otherData"]["dropped_steps"], trace.dropped_steps);
  }
}

TEST(Trace, TakesRunsThatAreNotWhole) {
  measure::Run run = served(5);
  run.requests[0].events.clear(), run.requests[0].outcome = Outcome::kFailed,
                                  run.requests[0].error = "\"</\xff";
  run.requests[1].receipt = {{"queue_ms", 1e9}};
  run.requests[2].end_s = run.requests[2].events.front().at_s;  // cut off
  run.requests[3].planned_s = run.requests[3].sent_s - 3;       // waited for a place
  expect_sound(parsed(trace_of(run, {})));
  run.steps.clear();
  const Trace bare = trace_of(run, {});
  EXPECT_EQ(json::parse(bare.json)["otherData"]["clock"], "the run has no steps");
  expect_sound(parsed(bare));
}

}  // namespace
}  // namespace tally::measure
