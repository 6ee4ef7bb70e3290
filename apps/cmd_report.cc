// tally report RUN...: stored runs as one HTML file.
#include "base/utf8.h"
#include "cli.h"
#include "loading.h"
#include "measure/report.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
namespace fs = std::filesystem;

constexpr size_t kRunsMax = 64;  // a page of more is none that anybody reads

// Each argument is a run, or a directory of runs.
Result<std::vector<std::string>> run_paths(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return Error{ErrorCode::kUsage, "report: 0 arguments; at least one, RUN, is needed"};
  std::vector<std::string> out;
  for (const std::string& path : arguments) {
    std::error_code ec;
    const std::vector<std::string> below = measure::list_runs(path);
    if (!below.empty() && !fs::exists(fs::path(path) / "run.json", ec))
      out.insert(out.end(), below.begin(), below.end());
    else
      out.push_back(path);
  }
  if (out.size() <= kRunsMax) return out;
  return Error{ErrorCode::kUsage,
               fmt::format("report: {} runs; at most {} are allowed", out.size(), kRunsMax)};
}

std::string name_of(const std::string& path) {
  const fs::path absolute = fs::absolute(path).lexically_normal();
  return (absolute.has_filename() ? absolute : absolute.parent_path()).filename().string();
}

Result<nlohmann::json> read(const std::vector<std::string>& arguments) {
  TALLY_TRY(const std::vector<std::string> paths, run_paths(arguments));
  std::vector<measure::NamedRun> runs;
  Progress progress("reading runs");
  for (const std::string& path : paths) {
    TALLY_TRY(measure::Run run, measure::load_run(path));
    runs.push_back({name_of(path), std::move(run)});
    progress.update(runs.size(), paths.size());
  }
  return measure::report_json(runs);
}

}  // namespace

int run_report(const Invocation& call) {
  const auto data = read(call.arguments);
  if (!data) return fail(data.error());
  if (call.settings.on("json")) return write_json(*data), 0;
  const std::string& out = call.settings.text("out");
  const std::string page = measure::report_page(*data);
  if (auto written = measure::replace_file(out, page); !written) return fail(written.error());
  fmt::print("saved: {} ({:.1f} MiB, {} runs)\n", base::escape_for_log(out),
             static_cast<double>(page.size()) / 0x1p20, (*data)["runs"].size());
  return 0;
}

}  // namespace tally::apps
