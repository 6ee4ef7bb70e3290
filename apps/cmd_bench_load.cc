// tally bench load: requests against servers, and what their users would have seen.
#include "bench_load_page.h"
#include "bench_load_settings.h"
#include "cli.h"
#include "interrupt.h"
#include "load_onlooker.h"

#include <fmt/format.h>

#include <cstdio>
#include <optional>

namespace tally::apps {
namespace {

using measure::CapacitySearch;
using measure::Level;
using measure::LoadBench;
using measure::LoadLive;

// One invocation at work.
class Session {
 public:
  Session(const Invocation& call, const LoadPlan& plan, LoadBench& bench)
      : call_(call), plan_(plan), bench_(bench), page_(plan.spec, bench.servers()) {}

  int run() {
    std::optional<CapacitySearch> search;
    warm_up();
    if (plan_.find_capacity) {
      search.emplace(plan_.levels.front());
      for (auto level = search->next(); level && !live_.stop && run_level(*level); level = search->next())
        search->tell(levels_.back().blocks.back().block.figures);
    } else {
      for (const Level& level : plan_.levels)
        if (live_.stop || !run_level(level)) break;
    }
    if (call_.settings.on("json"))
      page_.print_json(levels_, bench_.notes(), search ? &*search : nullptr);
    else if (search && !live_.stop)
      page_.print_knee(*search);
    if (failure_) return fail(*failure_);
    return live_.stop ? (fail({base::ErrorCode::kInternal, "interrupted"}), kInterrupted) : 0;
  }

 private:
  void warm_up() {
    const LoadOnlooker onlooker(live_);
    for (size_t server = 0; server < bench_.servers().size() && !live_.stop; ++server)
      bench_.warm_up(server, live_);
  }

  bool run_level(const Level& level) {
    LoadLevel& out = levels_.emplace_back(LoadLevel{level, {}});
    for (uint32_t repetition = 0; repetition < plan_.repetitions && !live_.stop && !failure_; ++repetition) {
      for (const size_t server : measure::server_order(bench_.servers().size(), repetition)) {
        if (live_.stop || failure_) break;
        const LoadOnlooker onlooker(live_);
        out.blocks.push_back({bench_.run(server, level, repetition, live_), ""});
        store(out.blocks.back());
      }
    }
    if (!call_.settings.on("json")) page_.print_level(out);
    return !failure_;
  }

  void store(StoredBlock& stored) {
    measure::LoadBlock& block = stored.block;
    const std::string& name = bench_.servers()[block.server].name;
    note_call(block.run, call_, "bench load",
              fmt::format("{}-{}{}{:g}-r{}", call_.settings.text("label"),
                          bench_.servers().size() > 1 ? name + '-' : "", block.level.is_open ? "rate" : "c",
                          block.level.value, block.repetition));
    auto path = measure::store_run(block.run, call_.settings.text("out"));
    path ? void(stored.path = *path) : void(failure_ = path.error());
  }

  const Invocation& call_;
  const LoadPlan& plan_;
  LoadBench& bench_;
  BenchLoadPage page_;
  LoadLive live_;
  std::vector<LoadLevel> levels_;
  std::optional<base::Error> failure_;
};

}  // namespace

int run_bench_load(const Invocation& call) {
  const auto plan = load_plan(call);
  if (!plan) return fail(plan.error());
  hold_ending_signals();
  const auto bench = LoadBench::open(plan->spec);
  if (!bench) return fail(bench.error());
  for (const std::string& note : (*bench)->notes()) fmt::print(stderr, "tally: note: {}\n", note);
  return Session(call, *plan, **bench).run();
}

}  // namespace tally::apps
