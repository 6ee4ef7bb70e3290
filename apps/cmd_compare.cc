// tally compare A B: which of two is better, and how sure is that.
#include "cli.h"
#include "compare_live.h"
#include "compare_page.h"
#include "interrupt.h"
#include "loading.h"
#include "measure/compare.h"
#include "measure/run.h"

#include <fmt/format.h>

#include <filesystem>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using measure::Run;

Result<PairedRuns> load_stored(const std::vector<std::string>& arguments) {
  TALLY_TRY(const measure::PairPaths paths, measure::pair_paths(arguments));
  PairedRuns out;
  out.same = paths.same;
  Progress progress("reading runs");
  for (const auto& [a, b] : paths.pairs) {
    for (const std::string& path : {a, b}) {
      TALLY_TRY(Run run, measure::load_run(path));
      out.runs.push_back(std::move(run));
      out.paths.push_back(path);
      progress.update(out.runs.size(), 2 * paths.pairs.size());
    }
  }
  return out;
}

// Of the file that --noise names; else of the one beside the runs, where there is one.
Result<std::optional<measure::Noise>> known_noise(const std::string& path, bool named) {
  std::error_code ec;
  if (!named && !std::filesystem::exists(path, ec)) return std::optional<measure::Noise>();
  TALLY_TRY(measure::Noise noise, measure::load_noise(path));
  return std::optional(std::move(noise));
}

std::string arm_name(const std::vector<std::string>& arguments, size_t arm) {
  return arguments.size() == 2 ? arguments[arm]
                               : fmt::format("{} and {} more", arguments[arm], arguments.size() / 2 - 1);
}

Result<int> compare(const Invocation& call) {
  TALLY_TRY(const PairedRuns measured,
            are_servers(call.arguments) ? measure_live(call) : load_stored(call.arguments));
  const std::vector<Run>& runs = measured.runs;
  if (measured.interrupted) return fail({ErrorCode::kInternal, "interrupted"}), kInterrupted;
  std::vector<measure::RunPair> pairs;
  for (size_t i = 0; i < runs.size(); i += 2) pairs.push_back({&runs[i], &runs[i + 1]});

  const std::string& named = call.settings.text("noise");
  const std::string noise_path =
      named.empty() ? measure::noise_path(runs.front(), measured.paths.front()) : named;
  std::optional<measure::Noise> noise;
  // A machine's noise is measured anew, not by what it was before.
  if (!measured.same) {
    TALLY_TRY(noise, known_noise(noise_path, !named.empty()));
  }
  TALLY_TRY(const measure::Comparison comparison,
            measure::is_bench(runs.front()) ? measure::compare_benches(pairs)
                                            : measure::compare_runs(pairs, noise ? &*noise : nullptr));
  const bool shows_noise = measured.same && pairs.size() > 1 && !measure::is_bench(runs.front());
  if (shows_noise && comparison.verdict != measure::Verdict::kInvalid) {
    noise = measure::noise_of(comparison, runs.front());
    TALLY_TRY_VOID(measure::store_noise(*noise, noise_path));
  }
  const ComparePage page{arm_name(call.arguments, 0),
                         arm_name(call.arguments, 1),
                         comparison,
                         noise ? &*noise : nullptr,
                         measured.same && noise,
                         noise_path,
                         measured.paths};
  call.settings.on("json") ? page.print_json() : page.print_table();
  return measure::exit_code(comparison);
}

}  // namespace

int run_compare(const Invocation& call) {
  const auto code = compare(call);
  return code ? *code : fail(code.error());
}

}  // namespace tally::apps
