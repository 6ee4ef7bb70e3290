#include "measure/audit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

namespace tally::measure {
namespace {

// A run of 40 requests, one after the other, about which there is nothing to say.
struct Case {
  Case() {
    for (uint32_t i = 0; i < 40; ++i) {
      RequestRecord r;
      r.id = i, r.class_name = "c", r.outcome = Outcome::kCompleted;
      r.planned_s = r.sent_s = i * .1;
      r.events = {{r.sent_s + .02, 1}, {r.sent_s + .09, 1}};
      r.end_s = r.sent_s + .09;
      r.prompt_tokens_planned = 100, r.output_tokens_planned = 2;
      r.prompt_tokens = 100, r.output_tokens = 2, r.cached_tokens = 0;
      trace.requests.push_back(r);
    }
    trace.wall_s = 4, trace.cpu_s = .01;
    trace.wake_lags_s.assign(400, .0002);
    trace.send_lags_s.assign(40, .0002);
    before.server = ProcessTimes{10, 5}, after.server = ProcessTimes{17, 5};
    after.machine = {.busy_s = 7.1, .steal_s = 0, .swapped_in = 0};
  }

  Audit run() {
    const Figures figures = figures_of(trace.requests);
    return audit({.trace = trace,
                  .figures = figures,
                  .before = before,
                  .after = after,
                  .cpus = 2,
                  .has_exact_lengths = true,
                  .shares_prefixes = shares,
                  .is_local = before.server.has_value()});
  }

  BlockTrace trace;
  Surroundings before, after;
  bool shares = false;
};

bool says(const std::vector<std::string>& sentences, std::string_view what) {
  return std::any_of(sentences.begin(), sentences.end(),
                     [&](auto& s) { return s.find(what) != std::string::npos; });
}

TEST(Audit, LetsAGoodRunPass) {
  const Audit a = Case().run();
  EXPECT_TRUE(a.reasons.empty()) << a.reasons[0];
  EXPECT_TRUE(a.warnings.empty()) << a.warnings[0];
  EXPECT_NEAR(a.figures["server_cpu_s"].get<double>(), 7, 1e-9);
  EXPECT_NEAR(a.figures["client_lag_p99_ms"].get<double>(), .2, 1e-9);
  EXPECT_NEAR(a.figures["foreign_cpu_ratio"].get<double>(), .09 / 8, 1e-9);
  EXPECT_EQ(a.figures["prefix_hit_ratio"], 0.);
}

TEST(Audit, SaysWhyARunIsInvalid) {
  const std::pair<const char*, std::function<void(Case&)>> cases[] = {
      {"the generator was late: P99 6.0 ms, at most 5.0 ms",
       [](Case& c) { std::fill_n(c.trace.wake_lags_s.begin(), 5, .006); }},
      {"the generator was late", [](Case& c) { c.trace.send_lags_s[3] = .1; }},
      {"12.5 % of the machine, at most 10 %", [](Case& c) { c.trace.cpu_s = 1; }},
      {"1 of 40 requests failed", [](Case& c) { c.trace.requests[7].outcome = Outcome::kFailed; }},
      {"no request completed",
       [](Case& c) {
         for (auto& r : c.trace.requests) r.outcome = Outcome::kRefused;
       }},
      {"interrupted", [](Case& c) { c.trace.is_stopped = true; }},
      {"prompt lengths, as the server counts, are 6.0 % off",
       [](Case& c) {
         for (auto& r : c.trace.requests) r.prompt_tokens = 106;
       }},
      {"output lengths are 50.0 % off",
       [](Case& c) {
         for (auto& r : c.trace.requests) r.output_tokens = 1;
       }},
      {"64 prompt tokens came from the server's prefix cache",
       [](Case& c) { c.trace.requests[0].cached_tokens = 64; }},
      {"the hypervisor took 2.5 %", [](Case& c) { c.after.machine.steal_s = .2; }},
      {"3 pages were swapped in", [](Case& c) { c.after.machine.swapped_in = 3; }},
      {"the clock was set", [](Case& c) { c.after.clock_offset_s = -7; }},
      {"other programs took 9.9 %", [](Case& c) { c.after.machine.busy_s = 7.8; }},
      {"2 times (major faults)", [](Case& c) { c.after.server->major_faults = 7; }},
  };
  for (const auto& [reason, spoil] : cases) {
    Case c;
    spoil(c);
    const Audit a = c.run();
    EXPECT_TRUE(says(a.reasons, reason)) << reason << " not in: " << (a.reasons.empty() ? "" : a.reasons[0]);
    EXPECT_EQ(a.reasons.size(), 1u) << reason;
  }
}

TEST(Audit, WarnsOfLess) {
  const std::pair<const char*, std::function<void(Case&)>> cases[] = {
      {"are 2.0 % off",
       [](Case& c) {
         for (auto& r : c.trace.requests) r.prompt_tokens = 102;
       }},
      {"3 of 40 requests were refused",
       [](Case& c) {
         for (int i = 0; i < 3; ++i) c.trace.requests[i].outcome = Outcome::kRefused;
       }},
      {"2 answers came without usage",
       [](Case& c) { c.trace.requests[0].output_tokens.reset(), c.trace.requests[1].output_tokens.reset(); }},
      {"the server's process is not", [](Case& c) { c.before.server.reset(), c.after.server.reset(); }},
      {"x as long as a request", [](Case& c) { c.trace.requests.resize(3); }},
  };
  for (const auto& [warning, spoil] : cases) {
    Case c;
    spoil(c);
    const Audit a = c.run();
    EXPECT_TRUE(says(a.warnings, warning)) << warning;
    EXPECT_TRUE(a.reasons.empty()) << warning << ": " << a.reasons[0];
  }
  Case c;
  c.shares = true, c.trace.requests[0].cached_tokens = 64;
  EXPECT_TRUE(c.run().reasons.empty());
}

TEST(Audit, TellsWhatTheServerCounted) {
  Case c;
  c.before.metrics.preemptions = 2, c.after.metrics.preemptions = 5;
  c.trace.memory.resize(2);
  c.trace.memory[0].rss_anon = 100, c.trace.memory[1].rss_anon = 90;
  c.trace.kv_utilisations = {.9, .7};
  const auto figures = c.run().figures;
  EXPECT_EQ(figures["preemptions"], 3);
  EXPECT_TRUE(figures["recomputed_tokens"].is_null());
  EXPECT_EQ(figures["peak_rss_anon_bytes"], 100);
  EXPECT_NEAR(figures["kv_utilisation_mean"].get<double>(), .8, 1e-9);
}

}  // namespace
}  // namespace tally::measure
