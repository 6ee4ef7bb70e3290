#include "ablate_plan.h"

#include "base/utf8.h"
#include "loading.h"

#include <fmt/format.h>

#include <algorithm>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using measure::Flags;

// A server of an ablation listens where its client finds it; the rest of these end a command early or name
// what the ablation decides itself.
constexpr std::string_view kNotServe = "config host port api-key-file allow-unauthenticated";
constexpr std::string_view kNotLoad = "config find-capacity profile repetitions out label json model";
constexpr std::string_view kNotEval = "config kv-type out label json svg";
constexpr size_t kMetricsWithGoodput = 6, kMetrics = 5;  // that get a verdict in each contrast
constexpr const char* kEvalTokens = "4096";
// Flags of `ablate` itself; all others are those of bench load.
constexpr std::string_view kOwn = "rounds quality noise out label json";

const Command& command(std::string_view name) {
  const auto all = commands();
  return *std::find_if(all.begin(), all.end(), [&](const Command& c) { return c.name == name; });
}

// `flags` as the command would take them from its command line, the environment and its defaults.
Result<Invocation> resolve(std::string_view name, std::string_view reserved, const Flags& flags) {
  for (const auto& [flag, value] : flags)
    if (base::has_word(reserved, flag))
      return Error{ErrorCode::kUsage, fmt::format("{}: an ablation decides this itself", flag)};
  return parse(command(name), flag_arguments(flags));
}

Error in(const std::string& file, const char* key, const Error& error) {
  return {error.code, fmt::format("{}: {}: {}", base::escape_for_log(file), key, error.message)};
}

// What the file says of the load, and over it what the command line or the environment says.
Result<LoadPlan> read_load(const Invocation& call, const measure::AblateFile& file) {
  Flags flags = file.load;
  for (const auto& [name, value] : call.settings.values())
    if (value.source != base::SettingSource::kDefault && !base::has_word(kOwn, name))
      flags[name] = value.text;
  // Its own default: every arm runs this many, in each round.
  const auto workload = flags.find("workload");
  if (workload == flags.end() || !is_workload_file(workload->second))
    flags.emplace("requests", call.settings.text("requests"));
  auto load = resolve("bench load", kNotLoad, flags);
  if (!load) return in(file.path, "load", load.error());
  load->arguments = {"http://127.0.0.1:1"};
  auto plan = load_plan(*load);
  if (!plan) return in(file.path, "load", plan.error());
  if (plan->levels.size() != 1)
    return in(
        file.path, "load",
        {ErrorCode::kUsage, "concurrency, rate: one value, the load under which all arms are measured"});
  return plan;
}

Result<Flags> effective(const Flags& flags) {
  TALLY_TRY(const Invocation serve, resolve("serve", kNotServe, flags));
  Flags out;
  for (const auto& [name, value] : serve.settings.values()) out[name] = value.text;
  return out;
}

// An arm that the machine cannot hold is told now, not in an hour.
Result<void> check_memory(const AblatePlan& plan) {
  for (const measure::Arm& arm : plan.design.arms) {
    TALLY_TRY(const Invocation serve, resolve("serve", kNotServe, arm.flags));
    const auto fits = engine::plan_memory(load_request(serve.settings, plan.model));
    if (!fits)
      return Error{fits.error().code,
                   fmt::format("arm '{}': {}", base::escape_for_log(arm.name, 64), fits.error().message)};
  }
  return {};
}

Result<void> read_eval(const Invocation& call, const measure::AblateFile& file, AblatePlan& plan) {
  for (const measure::Arm& arm : plan.design.arms) {
    const std::string& type = arm.settings.at("kv-type");
    if (std::find(plan.kv_types.begin(), plan.kv_types.end(), type) == plan.kv_types.end())
      plan.kv_types.push_back(type);
  }
  Flags flags = file.eval;
  flags.emplace("tokens", kEvalTokens);
  if (auto eval = resolve("eval kld", kNotEval, flags); !eval) return in(file.path, "eval", eval.error());
  if (plan.kv_types.size() > 1 && call.settings.on("quality")) plan.eval = flag_arguments(flags);
  return {};
}

}  // namespace

std::vector<std::string> flag_arguments(const Flags& flags) {
  const auto rows = setting_rows();
  std::vector<std::string> out;
  for (const auto& [name, value] : flags) {
    const bool is_switch = std::any_of(rows.begin(), rows.end(), [&](const base::SettingRow& row) {
      return row.name == name && row.type == base::SettingType::kSwitch;
    });
    if (is_switch && value == "off") continue;
    out.push_back(is_switch && value == "on" ? fmt::format("--{}", name)
                                             : fmt::format("--{}={}", name, value));
  }
  return out;
}

Result<AblatePlan> ablate_plan(const Invocation& call) {
  if (call.arguments.empty() || call.arguments.size() > 2)
    return Error{ErrorCode::kUsage,
                 fmt::format("{} arguments; FILE.json [MODEL.gguf] are expected", call.arguments.size())};
  TALLY_TRY(const measure::AblateFile file, measure::load_ablate_file(call.arguments[0]));
  AblatePlan out;
  TALLY_TRY(out.design, measure::ablate_design(file, effective));
  TALLY_TRY(out.load, read_load(call, file));
  TALLY_TRY_VOID(read_eval(call, file, out));
  const base::Settings& s = call.settings;
  out.model = call.arguments.size() > 1 ? call.arguments[1] : file.model;
  if (out.model.empty())
    return Error{ErrorCode::kUsage,
                 fmt::format("MODEL.gguf is missing: the second argument, or \"model\" of {}",
                             base::escape_for_log(file.path))};
  TALLY_TRY_VOID(check_memory(out));
  out.label = s.given("label") ? s.text("label") : file.label;
  out.out = s.text("out");
  const size_t metrics = out.load.spec.has_slo() ? kMetricsWithGoodput : kMetrics;
  const uint32_t enough = measure::rounds_for(out.design.contrasts.size() * metrics);
  out.rounds = s.given("rounds") ? static_cast<uint32_t>(s.number("rounds"))
               : file.rounds > 0 ? file.rounds
                                 : enough;
  if (out.rounds < enough)
    out.design.notes.push_back(
        fmt::format("rounds: {}, fewer than the {} that p = .05 needs over {} verdicts: FASTER and SLOWER "
                    "cannot come out",
                    out.rounds, enough, out.design.contrasts.size() * metrics));
  return out;
}

}  // namespace tally::apps
