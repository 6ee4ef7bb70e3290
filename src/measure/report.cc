#include "measure/report.h"

#include "base/check.h"
#include "measure/quantile.h"
#include "measure/report_parts.h"
#include "measure/store.h"
#include "measure/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace tally::measure {
namespace {

using nlohmann::json;

constexpr double kFlatShare = .95;  // of the best throughput: more users bring next to nothing
constexpr size_t kKneeLevels = 3;   // below that many there is no curve to bend

constexpr std::string_view kDigits = "0123456789";

// Cuts `mark` and what is allowed behind it off the end of `label`; false: it does not end so.
bool cut_end(std::string& label, std::string_view mark, std::string_view allowed) {
  const size_t at = label.rfind(mark), behind = at + mark.size();
  if (at == std::string::npos || at == 0 || behind == label.size()) return false;
  if (label.find_first_not_of(allowed, behind) != std::string::npos) return false;
  label.erase(at);
  return true;
}

// What labels of repetitions have in common: "load" of "load-c8-r0" and "load-rate0.5-r2" (bench load),
// "live-a" of "live-a3" (compare), "kv-type int8" of "kv-r2-kv-type int8" (ablate).
std::string arm_of(std::string label) {
  if (cut_end(label, "-r", kDigits)) {
    if (!cut_end(label, "-c", "0123456789.")) cut_end(label, "-rate", "0123456789.e-+");
    return label;
  }
  for (const std::string_view arm : {"-a", "-b"}) {
    if (cut_end(label, arm, kDigits)) return label.append(arm);
  }
  for (size_t at = label.find("-r"); at != std::string::npos; at = label.find("-r", at + 1)) {
    const size_t end = label.find_first_not_of(kDigits, at + 2);
    if (end != std::string::npos && end > at + 2 && label[end] == '-' && end + 1 < label.size())
      return label.substr(end + 1);
  }
  return label;
}

// Runs of the same arm, level and workload: repetitions.
struct SeriesKey {
  std::string arm, server, model, kv_type, build, workload;
  bool is_open = false;
  double level = 0;

  bool operator==(const SeriesKey&) const = default;
};

struct Series {
  SeriesKey key;
  std::vector<size_t> runs;
};

// The level of a run of load; 0 where it has none.
std::pair<bool, double> level_of(const json& head) {
  const auto at = head.find("by_concurrency");
  if (at == head.end() || !at->is_array() || at->empty()) return {false, 0};
  const json& first = at->front();
  const bool is_open = first.is_object() && first.contains("open") && first["open"] == true;
  return {is_open, number_at(first, "level").value_or(0)};
}

SeriesKey key_of(const NamedRun& named) {
  const json& head = named.run.head;
  const json &model = object_at(head, "model"), &client = object_at(head, "client_settings");
  SeriesKey key{.arm = arm_of(text_at(head, "label")),
                .server = text_at(client, "server"),
                .model = text_at(model, "path_basename"),
                .kv_type = text_at(model, "kv_type"),
                .build = text_at(head, "build_id").substr(0, 8),
                .workload = text_at(object_at(head, "workload"), "name")};
  if (key.arm.empty()) key.arm = named.name;
  if (key.server == text_at(client, "host")) key.server.clear();  // an address, which is no name
  std::tie(key.is_open, key.level) = level_of(head);
  return key;
}

std::vector<Series> series_of(std::span<const NamedRun> runs) {
  std::vector<Series> out;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].run.requests.empty()) continue;
    const SeriesKey key = key_of(runs[i]);
    const auto at = std::find_if(out.begin(), out.end(), [&](const Series& s) { return s.key == key; });
    if (at != out.end())
      at->runs.push_back(i);
    else
      out.push_back({key, {i}});
  }
  return out;
}

// What tells the arms apart, and nothing else.
std::string arm_name(const SeriesKey& key, const std::vector<Series>& all) {
  const auto differs = [&](std::string SeriesKey::* field) {
    return std::any_of(all.begin(), all.end(), [&](const Series& s) { return s.key.*field != key.*field; });
  };
  std::string out;
  for (std::string SeriesKey::* field : {&SeriesKey::arm, &SeriesKey::server, &SeriesKey::model,
                                         &SeriesKey::kv_type, &SeriesKey::workload, &SeriesKey::build}) {
    // A label of bench load holds the server's name where there are several.
    const bool is_said = field == &SeriesKey::server && key.arm.ends_with(key.server);
    if (differs(field) && !is_said && !(key.*field).empty()) out += (out.empty() ? "" : ", ") + key.*field;
  }
  return out.empty() ? key.arm : out;
}

std::string level_name(const SeriesKey& key) {
  if (key.level <= 0) return key.is_open ? "as traced" : "";
  return key.is_open ? fmt::format("{:g} requests/s", key.level)
                     : fmt::format("{:g} {}", key.level, key.level == 1 ? "user" : "users");
}

// The limits that a run was judged by, as it stored them.
Slo slo_of(const json& head) {
  const json& slo = object_at(object_at(head, "client_settings"), "slo");
  const auto limit = [&](const char* key) {
    const auto ms = number_at(slo, key);
    return ms ? std::optional(*ms / 1e3) : std::nullopt;
  };
  return {limit("ttft_ms"), limit("tpot_ms"), limit("itl_ms"), limit("e2e_ms")};
}

json one_series(const Series& series, const std::vector<Series>& all, std::span<const NamedRun> runs) {
  std::vector<const std::vector<RequestRecord>*> parts;
  for (const size_t i : series.runs) parts.push_back(&runs[i].run.requests);
  const std::vector<RequestRecord> requests = join_requests(parts);
  const json& head = runs[series.runs.front()].run.head;
  const Slo slo = slo_of(head);
  const bool has_slo = slo.ttft_s || slo.tpot_s || slo.itl_s || slo.e2e_s;
  json by_class = json::object();
  for (const auto& [name, figures] : figures_by_class(requests, has_slo ? &slo : nullptr))
    by_class[name] = results_json(figures);
  const std::string arm = arm_name(series.key, all), level = level_name(series.key);
  const bool is_alone = std::all_of(all.begin(), all.end(), [&](const Series& s) {
    return s.key.level == series.key.level && s.key.is_open == series.key.is_open;
  });
  return {{"arm", arm},
          {"name", is_alone || level.empty() ? arm : fmt::format("{}, {}", arm, level)},
          {"level", series.key.level},
          {"open", series.key.is_open},
          {"runs", series.runs},
          {"slo", object_at(object_at(head, "client_settings"), "slo")},
          {"results", results_json(figures_of(requests, has_slo ? &slo : nullptr))},
          {"by_class", std::move(by_class)},
          {"distributions", distributions_part(requests)}};
}

// Median and extremes of one of `results` over the runs; null where none has it.
json spread(std::span<const NamedRun> runs, const json& indices, const char* key) {
  std::vector<double> values;
  for (const json& i : indices)
    if (const auto value = number_at(object_at(runs[i.get<size_t>()].run.head, "results"), key))
      values.push_back(*value);
  if (values.empty()) return nullptr;
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {rounded(*low), rounded(median_of(values)), rounded(*high)};
}

// Of the requests of a level, how many met the limits; null without limits.
json good_share(std::span<const NamedRun> runs, const json& indices) {
  std::vector<double> shares;
  for (const json& i : indices) {
    const json& results = object_at(runs[i.get<size_t>()].run.head, "results");
    const auto rate = number_at(results, "request_goodput"), seconds = number_at(results, "duration"),
               count = number_at(results, "num_prompts");
    if (rate && seconds && count && *count > 0) shares.push_back(*rate * *seconds / *count);
  }
  return shares.empty() ? json(nullptr) : json(rounded(median_of(shares)));
}

// The largest level that is good enough; without limits the first that brings nearly the best throughput.
json knee_of(const json& points) {
  if (points.size() < kKneeLevels) return nullptr;
  json knee = nullptr;
  if (!points.front()["good_share"].is_null()) {
    for (const json& p : points)
      if (p["good_share"].is_number() && p["good_share"] >= kGoodShare) knee = p["level"];
    return knee;
  }
  double best = 0;
  for (const json& p : points)
    if (p["throughput"].is_array()) best = std::max(best, p["throughput"][1].get<double>());
  for (const json& p : points)
    if (knee.is_null() && p["throughput"].is_array() && p["throughput"][1] >= kFlatShare * best)
      knee = p["level"];
  return knee;
}

json one_run(const NamedRun& named) {
  const Run& run = named.run;
  const std::vector<RunStep> steps = run_steps(run);
  return {{"name", named.name},
          {"head", run.head},
          {"span_s", rounded(span_of(run, steps))},
          {"requests", requests_part(run)},
          {"timeline", timeline_part(run, steps)},
          {"memory", memory_part(run)},
          {"steps", steps_part(run, steps)},
          {"roofline", roofline_part(run, steps)},
          {"gaps", gaps_part(run)},
          {"slowest", slowest_part(run)}};
}

}  // namespace

json sweep_part(const json& series, std::span<const NamedRun> runs) {
  json arms = json::array();
  for (const json& s : series) {
    const auto level = number_at(s, "level");
    if (!level || *level <= 0) continue;
    auto arm = std::find_if(arms.begin(), arms.end(),
                            [&](const json& a) { return a["arm"] == s["arm"] && a["open"] == s["open"]; });
    if (arm == arms.end()) {
      arms.push_back({{"arm", s["arm"]}, {"open", s["open"]}, {"points", json::array()}});
      arm = arms.end() - 1;
    }
    (*arm)["points"].push_back({{"level", *level},
                                {"runs", s["runs"].size()},
                                {"throughput", spread(runs, s["runs"], "output_throughput")},
                                {"goodput", spread(runs, s["runs"], "goodput_tokens_per_s")},
                                {"good_share", good_share(runs, s["runs"])},
                                {"ttft_ms", spread(runs, s["runs"], "median_ttft_planned_ms")},
                                {"ttft_p95_ms", spread(runs, s["runs"], "p95_ttft_planned_ms")}});
  }
  for (json& arm : arms) {
    auto& points = arm["points"].get_ref<json::array_t&>();
    std::stable_sort(points.begin(), points.end(),
                     [](const json& a, const json& b) { return a["level"] < b["level"]; });
    arm["knee"] = knee_of(arm["points"]);
  }
  if (arms.empty()) return why("No run here is one of bench load at a level.");
  return {{"arms", std::move(arms)}};
}

json report_json(std::span<const NamedRun> runs) {
  TALLY_CHECK(!runs.empty(), "a report of nothing");
  json out = {{"schema", kSchema}, {"runs", json::array()}, {"series", json::array()}};
  for (const NamedRun& named : runs) out["runs"].push_back(one_run(named));
  const std::vector<Series> all = series_of(runs);
  for (const Series& series : all) out["series"].push_back(one_series(series, all, runs));
  out["sweep"] = sweep_part(out["series"], runs);
  return out;
}

}  // namespace tally::measure
