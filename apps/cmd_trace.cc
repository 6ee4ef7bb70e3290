// tally trace RUN: a stored run for chrome://tracing and Perfetto.
#include "base/utf8.h"
#include "cli.h"
#include "measure/run.h"
#include "measure/trace.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

namespace tally::apps {

int run_trace(const Invocation& call) {
  using base::ErrorCode;
  if (call.arguments.size() != 1)
    return fail(
        {ErrorCode::kUsage, fmt::format("trace: {} arguments; one, RUN, is needed", call.arguments.size())});
  const std::string& path = call.arguments.front();
  const auto run = measure::load_run(path);
  if (!run) return fail(run.error());
  if (run->requests.empty() && run->steps.empty())
    return fail({ErrorCode::kBadData, fmt::format("{}: the run has no requests and no steps; a run of bench "
                                                  "load is needed",
                                                  base::escape_for_log(path))});
  measure::TraceOptions options;
  options.name = std::filesystem::path(path).lexically_normal().filename().string();
  const measure::Trace trace = measure::trace_of(*run, options);
  if (trace.dropped_counters + trace.dropped_steps + trace.dropped_requests > 0)
    fmt::print(stderr,
               "tally: note: above {} MB: {} counters, {} of the shortest steps, {} requests were left out\n",
               options.bytes_max / 1'000'000, trace.dropped_counters, trace.dropped_steps,
               trace.dropped_requests);
  const std::string& out = call.settings.text("out");
  if (out.empty()) {
    const size_t written = std::fwrite(trace.json.data(), 1, trace.json.size(), stdout);
    return written == trace.json.size() && std::fflush(stdout) == 0
               ? 0
               : fail({ErrorCode::kIo, "stdout: cannot be written"});
  }
  if (auto written = measure::replace_file(out, trace.json); !written) return fail(written.error());
  fmt::print("saved: {} ({} events)\n", base::escape_for_log(out), trace.events);
  return 0;
}

}  // namespace tally::apps
