#include "bench_store.h"

#include "base/utf8.h"
#include "bench_load_settings.h"
#include "interrupt.h"
#include "measure/load_head.h"
#include "measure/store.h"
#include "serve/build_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace tally::apps {
namespace {

using nlohmann::json;

measure::Run run_of(const json& page, std::string_view command) {
  measure::Run run;
  run.head = {{"schema", measure::kSchema},
              {"started", measure::wall_clock()},
              {"status", interrupted() ? "incomplete" : "complete"},
              {"valid", true},
              {"invalid_reasons", json::array()},
              {"warnings", page.at("warnings")},
              {"build_id", serve::build_id()},
              {"machine", page.at("machine")},
              {"settings", page.value("settings", json::object())},
              {"model", page.value("model", json::object())},
              {"workload", {{"name", command}}},
              {"results", {{"rows", page.at("results")}}},
              {"stats_method", "medians of repetitions, each of them a round through all rows"}};
  return run;
}

}  // namespace

base::Result<void> tell_bench(const Invocation& call, std::string_view command, json page,
                              const std::function<void()>& print_table) {
  std::string saved;
  if (call.settings.on("store")) {
    measure::Run run = run_of(page, command);
    std::string label(command);
    std::replace(label.begin(), label.end(), ' ', '-');
    note_call(run, call, command, label);
    TALLY_TRY(saved, measure::store_run(run, call.settings.text("out")));
    page["saved"] = saved;
  }
  if (call.settings.on("json")) return write_json(page), base::Result<void>();
  print_table();
  if (!saved.empty())
    fmt::print("saved: {}\ncompare: tally compare {} OTHER\n", base::escape_for_log(saved),
               base::escape_for_log(saved));
  return {};
}

}  // namespace tally::apps
