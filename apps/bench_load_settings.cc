#include "bench_load_settings.h"

#include "base/check.h"
#include "base/utf8.h"
#include "bench_lists.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using measure::Arrival;
using measure::Level;
using measure::Slo;

constexpr std::string_view kLoadCommand = "bench-load";
constexpr double kRateMin = .001, kRateMax = 1e6;

Error refuse_flag(std::string_view flag, const std::string& value, const std::string& allowed) {
  return {ErrorCode::kUsage, fmt::format("--{}: '{}' is not allowed; allowed: {}", flag,
                                         base::escape_for_log(value, 64), allowed)};
}

struct Preset {
  std::string_view name;
  double ttft_s, tpot_s;
};
constexpr Preset kPresets[] = {
    {"mlperf-server", 2, .1}, {"mlperf-interactive", .5, .03}, {"mlperf-70b", 2, .2}};

// How much is measured, where no flag says it.
struct Profile {
  std::string_view name;
  uint32_t requests, repetitions;  // of a level
  uint32_t pairs;                  // of two servers
};
constexpr Profile kProfiles[] = {{"look", 200, 1, 3}, {"standard", 400, 5, 8}, {"release", 2000, 5, 20}};

const Profile& profile_of(const std::string& name) {
  const auto at =
      std::find_if(std::begin(kProfiles), std::end(kProfiles), [&](auto& p) { return p.name == name; });
  TALLY_CHECK(at != std::end(kProfiles), "a profile that is a choice but no row");
  return *at;
}

Result<Slo> read_slo(const base::Settings& s) {
  Slo out;
  for (const std::string& word : s.list("slo")) {
    const auto preset =
        std::find_if(std::begin(kPresets), std::end(kPresets), [&](auto& p) { return p.name == word; });
    if (preset != std::end(kPresets)) {
      out.ttft_s = preset->ttft_s, out.tpot_s = preset->tpot_s;
      continue;
    }
    const std::pair<std::string_view, std::optional<double>*> limits[] = {
        {"ttft:", &out.ttft_s}, {"tpot:", &out.tpot_s}, {"itl:", &out.itl_s}, {"e2e:", &out.e2e_s}};
    const auto limit = std::find_if(std::begin(limits), std::end(limits),
                                    [&](auto& l) { return word.starts_with(l.first); });
    const auto ms =
        limit == std::end(limits) ? std::nullopt : base::parse_real(word.substr(limit->first.size()));
    if (!ms || !(*ms > 0 && *ms <= 1e9))
      return refuse_flag(
          "slo", word,
          "ttft:MS tpot:MS itl:MS e2e:MS, mlperf-server, mlperf-interactive, mlperf-70b, separated "
          "by commas");
    *limit->second = *ms / 1e3;
  }
  if (s.given("slo") && s.list("slo").empty())
    return refuse_flag("slo", s.text("slo"), "ttft:MS,tpot:MS,itl:MS,e2e:MS");
  return out;
}

Result<std::vector<Level>> read_levels(const base::Settings& s) {
  std::vector<Level> levels;
  const bool is_trace = s.text("arrival") == "trace";
  if (s.given("rate") && s.given("concurrency"))
    return Error{ErrorCode::kUsage, "--rate, --concurrency: one of them, an open or a closed loop"};
  for (const std::string& word : s.list("rate")) {
    const auto rate = base::parse_real(word);
    if (!rate || !(*rate >= kRateMin && *rate <= kRateMax))
      return refuse_flag("rate", word, fmt::format("numbers {}..{} separated by commas", kRateMin, kRateMax));
    levels.push_back({.is_open = true, .value = *rate});
  }
  if (s.given("rate") && levels.empty())
    return refuse_flag("rate", s.text("rate"), "numbers separated by commas");
  TALLY_TRY(const std::vector<uint32_t> users, number_list(s, kLoadCommand, "concurrency"));
  for (const uint32_t count : users)
    levels.push_back({.is_open = false, .value = static_cast<double>(count)});
  if (is_trace && !users.empty())
    return Error{ErrorCode::kUsage, "--arrival trace: an open loop, without --concurrency"};
  if (levels.empty()) levels.push_back({.is_open = is_trace, .value = is_trace ? 0. : 1.});
  return levels;
}

Result<std::vector<measure::ServerAddress>> read_servers(const std::vector<std::string>& arguments) {
  if (arguments.empty())
    return Error{ErrorCode::kUsage, "URL is missing: http://HOST[:PORT] or https://HOST[:PORT], or NAME=URL"};
  std::vector<measure::ServerAddress> out;
  std::set<std::string> names;
  for (const std::string& argument : arguments) {
    const size_t equals = argument.find('='), scheme = argument.find("://");
    const bool is_named = equals != std::string::npos && equals < scheme;
    out.push_back(
        {is_named ? argument.substr(0, equals) : "", is_named ? argument.substr(equals + 1) : argument});
    const std::string& name = is_named ? out.back().name : argument;
    if (!names.insert(name).second)
      return Error{ErrorCode::kUsage, fmt::format("{}: given twice; NAME=URL gives a server another name",
                                                  base::escape_for_log(name, 64))};
  }
  return out;
}

Arrival read_arrival(const std::string& name) {
  if (name == "gamma") return Arrival::kGamma;
  if (name == "constant") return Arrival::kConstant;
  if (name == "burst") return Arrival::kBurst;
  return name == "trace" ? Arrival::kTrace : Arrival::kPoisson;
}

uint32_t count(const base::Settings& s, const char* name) { return static_cast<uint32_t>(s.number(name)); }

// Of `requests` or `repetitions`: as its flag says, else what the profile has.
uint32_t count_or(const base::Settings& s, const char* name, uint32_t of_profile) {
  return s.text(name).empty() ? of_profile : count(s, name);
}

}  // namespace

bool is_workload_file(const std::string& workload) {
  return !base::has_word("mix random shared-prefix multi-turn", workload);
}

Result<LoadPlan> load_plan(const Invocation& call) {
  const base::Settings& s = call.settings;
  LoadPlan out;
  measure::LoadSpec& spec = out.spec;
  TALLY_TRY(spec.servers, read_servers(call.arguments));
  TALLY_TRY(spec.slo, read_slo(s));
  TALLY_TRY(out.levels, read_levels(s));
  const bool is_file = is_workload_file(s.text("workload")),
             is_pairs = !s.values().contains("find-capacity");  // compare
  const Profile& profile = profile_of(s.text("profile"));
  spec.workload = {
      .name = s.text("workload"),
      .requests = is_file && !s.given("requests") ? 0 : count_or(s, "requests", profile.requests),
      .prompt_tokens = count(s, "prompt-tokens"),
      .output_tokens = count(s, "output-tokens"),
      .prefix_tokens = count(s, "prefix-tokens"),
      .groups = count(s, "groups"),
      .turns = count(s, "turns"),
      .spread = s.real("spread"),
      .seed = s.number("seed")};
  spec.arrival = {read_arrival(s.text("arrival")), s.real("burstiness"), count(s, "burst")};
  spec.model = s.text("model"), spec.api_key = client_api_key();
  spec.is_chat = s.text("api") == "chat", spec.is_stream = s.on("stream");
  spec.keeps_cache = s.text("cache") == "keep";
  spec.in_flight_max = count(s, "max-inflight");
  spec.timeout_s = static_cast<double>(s.number("timeout")) * 1e-3;
  out.repetitions = count_or(s, "repetitions", is_pairs ? profile.pairs : profile.repetitions);
  out.find_capacity = !is_pairs && s.on("find-capacity");
  if (out.find_capacity && !spec.has_slo())
    return Error{ErrorCode::kUsage, "--find-capacity: --slo says which requests are good"};
  if (out.find_capacity && (spec.servers.size() > 1 || out.levels.front().value <= 0))
    return Error{ErrorCode::kUsage,
                 "--find-capacity: one server, and a --rate or --concurrency to begin with"};
  return out;
}

void note_call(measure::Run& run, const Invocation& call, std::string_view command,
               const std::string& label) {
  nlohmann::json& head = run.head;
  head["label"] = label;
  head["command"] = command;
  head["argv"] = call.arguments;
  head["tally_version"] = TALLY_VERSION;
  nlohmann::json& flags = head["client_settings"]["flags"];
  for (const auto& [key, value] : call.settings.values()) flags[key] = value.text;
}

}  // namespace tally::apps
