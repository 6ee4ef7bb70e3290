// tally runs [DIR]: the stored runs, oldest first.
#include "base/utf8.h"
#include "cli.h"
#include "measure/run.h"

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

namespace tally::apps {
namespace {

using nlohmann::json;

constexpr size_t kColumnMax = 40;

struct Figure {
  const char *key, *heading;
};
constexpr Figure kFigures[] = {{"completed", "completed"},     {"request_throughput", "req/s"},
                               {"output_throughput", "tok/s"}, {"median_ttft_planned_ms", "TTFT ms"},
                               {"median_tpot_ms", "TPOT ms"},  {"p99_e2e_planned_ms", "E2E P99"}};

// head[object][key], or head[key] where object is null; null where there is none.
json member(const json& head, const char* object, const char* key) {
  const json* at = &head;
  if (object != nullptr) {
    const auto inner = head.find(object);
    if (inner == head.end() || !inner->is_object()) return nullptr;
    at = &*inner;
  }
  const auto value = at->find(key);
  return value == at->end() ? json(nullptr) : *value;
}

std::string shown(const json& value) {
  if (value.is_null()) return "-";
  if (value.is_number_float())
    return fmt::format("{:.{}f}", value.get<double>(), value.get<double>() < 10 ? 2 : 1);
  return base::escape_for_log(value.is_string() ? value.get<std::string>() : value.dump(), kColumnMax);
}

json row_of(const std::string& path, const json& head) {
  json results = json::object();
  for (const Figure& f : kFigures) results[f.key] = member(head, "results", f.key);
  return {{"path", path},
          {"started", member(head, nullptr, "started")},
          {"label", member(head, nullptr, "label")},
          {"command", member(head, nullptr, "command")},
          {"status", member(head, nullptr, "status")},
          {"valid", member(head, nullptr, "valid")},
          {"model", member(head, "model", "path_basename")},
          {"workload", member(head, "workload", "name")},
          {"results", std::move(results)}};
}

void print_table(const json& rows) {
  fmt::print("{:<21}{:<18}{:<11}{:<7}{:<32}{:<15}", "started", "label", "status", "valid", "model",
             "workload");
  for (const Figure& f : kFigures) fmt::print("{:>10}", f.heading);
  fmt::print("\n");
  for (const json& row : rows) {
    const json& valid = row["valid"];
    fmt::print("{:<20} {:<17} {:<10} {:<6} {:<31} {:<14} ", shown(row["started"]), shown(row["label"]),
               shown(row["status"]), valid.is_boolean() ? (valid.get<bool>() ? "yes" : "NO") : "-",
               shown(row["model"]), shown(row["workload"]));
    for (const Figure& f : kFigures) fmt::print("{:>10}", shown(row["results"][f.key]));
    fmt::print("\n  {}\n", base::escape_for_log(row["path"].get<std::string>()));
  }
}

}  // namespace

int run_runs(const Invocation& call) {
  if (call.arguments.size() > 1)
    return fail({base::ErrorCode::kUsage,
                 fmt::format("{} arguments; at most one, DIR, is allowed", call.arguments.size())});
  const std::string directory =
      call.arguments.empty() ? std::string(measure::kRunsDirectory) : call.arguments.front();
  std::error_code ec;
  if (!std::filesystem::is_directory(directory, ec))
    return fail(
        {base::ErrorCode::kNoInput, fmt::format("{}: no such directory", base::escape_for_log(directory))});
  json rows = json::array(), unreadable = json::array();
  for (const std::string& path : measure::list_runs(directory)) {
    if (const auto head = measure::load_head(path))
      rows.push_back(row_of(path, *head));
    else
      unreadable.push_back(head.error().message);
  }
  if (call.settings.on("json")) {
    const json out = {
        {"directory", directory}, {"runs", std::move(rows)}, {"unreadable", std::move(unreadable)}};
    write_json(out);
    return 0;
  }
  if (rows.empty()) fmt::print("{}: no stored runs\n", base::escape_for_log(directory));
  if (!rows.empty()) print_table(rows);
  for (const json& message : unreadable) fmt::print(stderr, "tally: {}\n", message.get<std::string>());
  return 0;
}

}  // namespace tally::apps
