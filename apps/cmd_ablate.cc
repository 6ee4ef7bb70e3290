// tally ablate FILE [MODEL]: one variable at a time from a baseline, in interleaved rounds.
#include "ablate_page.h"
#include "ablate_plan.h"
#include "ablate_session.h"
#include "base/utf8.h"
#include "cli.h"
#include "interrupt.h"
#include "measure/load_head.h"
#include "measure/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using measure::Ablation;
using measure::Run;

constexpr const char* kForest = "forest.svg";

// "runs/20261130-061736-ladder-arms", beside what is stored in the end.
std::string arms_directory(const AblatePlan& plan, const std::string& started) {
  std::string stamp;
  for (const char c : started) {
    if (c >= '0' && c <= '9') stamp += c;
    if (c == 'T') stamp += '-';
  }
  return fmt::format("{}/{}-{}-arms", plan.out, stamp, measure::file_word(plan.label));
}

std::string counted(size_t n, std::string_view what) {
  return fmt::format("{} {}{}", n, what, n == 1 ? "" : "s");
}

void announce(const AblatePlan& plan) {
  for (const std::string& note : plan.design.notes)
    fmt::print(stderr, "tally: note: {}\n", base::escape_for_log(note));
  fmt::print(stderr, "tally: {}, {}: {}, a server of its own each; {}\n",
             counted(plan.design.arms.size(), "arm"), counted(plan.rounds, "round"),
             counted(plan.runs(), "run"), counted(plan.design.contrasts.size(), "contrast"));
}

std::string title_of(const AblatePlan& plan, const Ablation& ablation) {
  const measure::WorkloadSpec& workload = plan.load.spec.workload;
  return fmt::format("ablation {} of {}: {} of {} ({}), {}", plan.label,
                     std::filesystem::path(plan.model).filename().string(), counted(ablation.rounds, "round"),
                     counted(workload.requests, "request"), workload.name, plan.load.levels.front().text());
}

// Of the file that --noise names; else of the one in --out, where there is one.
Result<std::optional<measure::Noise>> known_noise(const Invocation& call, const Run& first) {
  const std::string& named = call.settings.text("noise");
  const std::string path =
      named.empty() ? measure::noise_path(first, call.settings.text("out") + "/run") : named;
  std::error_code ec;
  if (named.empty() && !std::filesystem::exists(path, ec)) return std::optional<measure::Noise>();
  TALLY_TRY(measure::Noise noise, measure::load_noise(path));
  return std::optional(std::move(noise));
}

// Writes the run and its picture; where.
Result<std::string> store(const Invocation& call, const AblatePlan& plan, const AblateSession& session,
                          Run run, const std::string& svg) {
  note_call(run, call, "ablate", plan.label);
  for (size_t arm = 0; arm < session.paths().size(); ++arm)
    run.head["arm_runs"][plan.design.arms[arm].name] = session.paths()[arm];
  TALLY_TRY(std::string path, measure::store_run(run, plan.out));
  if (!svg.empty()) TALLY_TRY_VOID(measure::replace_file(path + '/' + kForest, svg));
  return path;
}

Result<int> ablate(const Invocation& call) {
  TALLY_TRY(const AblatePlan plan, ablate_plan(call));
  hold_ending_signals();
  announce(plan);
  std::vector<std::vector<Run>> rounds;
  const std::string started = measure::wall_clock();
  const std::string directory = arms_directory(plan, started);
  AblateSession session(call, plan, directory);
  const auto measure_all = [&]() -> Result<void> {
    const auto quality = plan.eval.empty() ? Result<void>() : session.measure_quality();
    if (!quality) fmt::print(stderr, "tally: note: no quality: {}\n", quality.error().message);
    if (session.is_stopped()) return {};
    return measure::run_rounds(plan.design.arms.size(), plan.rounds, plan.load.spec.workload.seed, session,
                               rounds);
  };
  const auto measured = measure_all();
  const bool is_complete = measured && !session.is_stopped();
  if (rounds.empty()) {
    if (!measured) return measured.error();
    const std::string kept = base::escape_for_log(directory);
    return fail({ErrorCode::kInternal, "interrupted before a round was complete; its runs are in " + kept}),
           kInterrupted;
  }
  const Run& first = rounds.front().front();
  TALLY_TRY(const std::optional<measure::Noise> noise, known_noise(call, first));
  TALLY_TRY(const Ablation ablation,
            measure::analyse(plan.design, rounds, session.facts(), noise ? &*noise : nullptr));
  Run run = measure::ablation_run(ablation, first);
  run.head["started"] = started;
  if (!is_complete) run.head["status"] = "incomplete";
  const std::string title = title_of(plan, ablation);
  const nlohmann::json results = run.head["results"];
  TALLY_TRY(const std::string saved,
            store(call, plan, session, std::move(run), measure::forest_svg(ablation, title)));
  if (call.settings.on("json")) {
    nlohmann::json out = results;
    out["saved"] = saved;
    write_json(out);
  } else {
    AblatePage{ablation, title, noise ? &*noise : nullptr}.print();
    fmt::print("saved: {}\n", base::escape_for_log(saved));
  }
  if (!measured) return measured.error();
  if (!is_complete) return fail({ErrorCode::kInternal, "interrupted"}), kInterrupted;
  return measure::exit_code(ablation.verdict);
}

}  // namespace

int run_ablate(const Invocation& call) {
  const auto code = ablate(call);
  return code ? *code : fail(code.error());
}

}  // namespace tally::apps
