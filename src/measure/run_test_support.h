// Stored runs out of thin air: a machine whose speed drifts, requests that have noise of their own.
#pragma once

#include "measure/run.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

namespace tally::measure {

struct MadeRun {
  uint64_t prompts_seed = 1;  // the same for both runs of a pair: which prompts
  uint64_t noise_seed = 1;    // of this run alone
  uint32_t requests = 60;
  bool one_class = false;
  double slower = 0;          // log of all times
  double prompt_spread = .5;  // standard deviations of logs
  double request_noise = .08;
};

// Closed loop, one request after the other, 20 tokens each in two events.
inline Run make_run(const MadeRun& how) {
  std::mt19937_64 prompts(how.prompts_seed), noise(how.noise_seed);
  std::normal_distribution<double> normal;
  constexpr uint32_t kTokens = 20;
  Run run;
  double now_s = 0;
  for (uint32_t id = 0; id < how.requests; ++id) {
    RequestRecord r;
    r.id = id;
    r.class_name = how.one_class || id % 3 != 0 ? "long" : "short";
    r.outcome = Outcome::kCompleted;
    r.http_status = 200;
    const double size = std::exp(how.prompt_spread * normal(prompts) + how.slower);
    r.planned_s = r.sent_s = now_s;
    const double first = now_s + .2 * size * std::exp(how.request_noise * normal(noise));
    now_s = first + .5 * std::exp(how.slower + how.request_noise * normal(noise));
    r.events = {{first, 1}, {now_s, kTokens - 1}};
    r.end_s = now_s;
    r.prompt_tokens = 100;
    r.output_tokens = kTokens;
    run.requests.push_back(std::move(r));
  }
  run.head = {{"schema", 1},
              {"status", "complete"},
              {"valid", true},
              {"model", {{"sha256", "abc"}}},
              {"workload", {{"sha256", "w" + std::to_string(how.prompts_seed)}, {"name", "mix"}}},
              {"machine", {{"fingerprint", "f00d"}}},
              {"settings",
               {{"settings",
                 {{"kv-type", {{"value", "int8"}, {"source", "default"}}},
                  {"port", {{"value", 8000}, {"source", "default"}}}}}}},
              {"results", {{"peak_rss_anon_bytes", 1'000'000'000.}}}};
  return run;
}

// Several pairs of one machine. Its speed drifts from pair to pair, which both arms share; what an arm has of
// its own is `arm_noise`.
struct MadePairs {
  uint64_t seed = 1;
  size_t pairs = 8;
  double slower_b = 0;  // log of the true ratio of times
  double drift = .03, arm_noise = .02, request_noise = .08;
  uint32_t requests = 60;
  bool one_class = false;
};

struct Arms {
  std::vector<Run> a, b;
};

inline Arms make_pairs(const MadePairs& how) {
  std::mt19937_64 draw(how.seed);
  std::normal_distribution<double> normal;
  Arms out;
  double machine = 0;
  for (size_t i = 0; i < how.pairs; ++i) {
    machine += how.drift * normal(draw);  // a walk: it does not come back
    MadeRun run;
    run.prompts_seed = draw();
    run.requests = how.requests, run.request_noise = how.request_noise, run.one_class = how.one_class;
    run.noise_seed = draw(), run.slower = machine + how.arm_noise * normal(draw);
    out.a.push_back(make_run(run));
    run.noise_seed = draw(), run.slower = machine + how.arm_noise * normal(draw) + how.slower_b;
    out.b.push_back(make_run(run));
  }
  return out;
}

}  // namespace tally::measure
