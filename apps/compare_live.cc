#include "compare_live.h"

#include "bench_load_settings.h"
#include "interrupt.h"
#include "load_onlooker.h"
#include "measure/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using measure::LoadBench;

constexpr std::array<const char*, 2> kArms{"a", "b"};

Result<LoadPlan> two_servers(const Invocation& call) {
  TALLY_TRY(LoadPlan plan, load_plan(call));
  if (plan.spec.servers.size() != kArms.size())
    return Error{ErrorCode::kUsage,
                 fmt::format("{} servers; two, A and B, are compared", plan.spec.servers.size())};
  if (plan.levels.size() != 1)
    return Error{ErrorCode::kUsage,
                 "--concurrency, --rate: one value, the load under which both are compared"};
  return plan;
}

}  // namespace

bool are_servers(const std::vector<std::string>& arguments) {
  return std::any_of(arguments.begin(), arguments.end(),
                     [](const std::string& a) { return a.find("://") != std::string::npos; });
}

Result<PairedRuns> measure_live(const Invocation& call) {
  TALLY_TRY(const LoadPlan plan, two_servers(call));
  hold_ending_signals();
  TALLY_TRY(const std::unique_ptr<LoadBench> bench, LoadBench::open(plan.spec));
  for (const std::string& note : bench->notes()) fmt::print(stderr, "tally: note: {}\n", note);
  PairedRuns out;
  out.same = plan.spec.servers[0].url == plan.spec.servers[1].url;
  measure::LoadLive live;
  const LoadOnlooker onlooker(live);
  for (size_t arm = 0; arm < kArms.size() && !live.stop; ++arm) bench->warm_up(arm, live);
  for (uint32_t repetition = 0; repetition < plan.repetitions && !live.stop; ++repetition) {
    std::array<measure::Run, 2> pair;
    std::array<std::string, 2> paths;
    for (const size_t arm : measure::server_order(kArms.size(), repetition)) {
      if (live.stop) break;
      pair[arm] = bench->run(arm, plan.levels.front(), repetition, live).run;
      note_call(pair[arm], call, "compare",
                fmt::format("{}-{}{}", call.settings.text("label"), kArms[arm], repetition + 1));
      TALLY_TRY(paths[arm], measure::store_run(pair[arm], call.settings.text("out")));
    }
    if (live.stop) break;
    for (size_t arm = 0; arm < kArms.size(); ++arm) {
      out.runs.push_back(std::move(pair[arm]));
      out.paths.push_back(std::move(paths[arm]));
    }
  }
  out.interrupted = live.stop;
  return out;
}

}  // namespace tally::apps
