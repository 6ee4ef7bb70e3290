// tally snapshot URL: memory accounts and block map of a server; tally snapshot diff A B: what changed.
#include "base/utf8.h"
#include "cli.h"
#include "measure/snapshot.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>

namespace tally::apps {
namespace {

using base::Error;
using base::ErrorCode;
using nlohmann::json;

double mib(const json& bytes) { return static_cast<double>(bytes.get<int64_t>()) / 0x1p20; }

void print_row(const std::string& name, const json& use) {
  fmt::print("{:<22}{:>12.1f}{:>12.1f}{:>12}{:>12.1f}\n", base::escape_for_log(name, 40),
             mib(use["planned_bytes"]), mib(use["reserved_bytes"]),
             use.contains("used_bytes") ? fmt::format("{:.1f}", mib(use["used_bytes"])) : "",
             mib(use["peak_bytes"]));
}

void print_snapshot(const json& snapshot) {
  const json &page = snapshot["accounts"], &blocks = snapshot["blocks"];
  fmt::print("{:<22}{:>12}{:>12}{:>12}{:>12}\n", "MiB", "planned", "reserved", "used", "peak");
  for (const auto& [name, account] : page["accounts"].items()) {
    print_row(name, account);
    for (const auto& [part, use] : account["parts"].items()) print_row("  " + part, use);
  }
  fmt::print("{:<22}{:>12.1f}{:>12.1f}\n", "total", mib(page["planned_bytes"]), mib(page["reserved_bytes"]));
  fmt::print("\nmeasured: {:.1f} MiB anonymous, {:.1f} of files, {:.1f} in swap; unaccounted {:.1f} MiB\n",
             mib(page["measured_rss_anon_bytes"]), mib(page["measured_rss_file_bytes"]),
             mib(page["measured_swap_bytes"]), mib(page["unaccounted_bytes"]));
  fmt::print("blocks: {} free, {} held, {} cached, {} shared\n", blocks["free"].dump(), blocks["held"].dump(),
             blocks["cached"].dump(), blocks["shared"].dump());
  const json verdict = page.value("fragmentation", json::object()).value("verdict", json(""));
  if (verdict.is_string()) fmt::print("{}\n", base::escape_for_log(verdict.get<std::string>(), 600));
}

void print_change(const std::string& name, const json& change, double unit) {
  const auto shown = [&](size_t i) { return static_cast<double>(change[i].get<int64_t>()) / unit; };
  if (change[2] == 0) return;
  fmt::print("{:<34}{:>14.1f}{:>14.1f}{:>+14.1f}\n", base::escape_for_log(name, 60), shown(0), shown(1),
             shown(2));
}

// Only what changed.
void print_diff(const json& diff) {
  fmt::print("{:<34}{:>14}{:>14}{:>14}\n", "MiB", "before", "after", "change");
  for (const auto& [key, change] : diff["totals"].items()) print_change(key, change, 0x1p20);
  for (const auto& [name, account] : diff["accounts"].items())
    for (const auto& [key, change] : account.items()) print_change(name + " " + key, change, 0x1p20);
  for (const auto& [part, change] : diff["parts"].items()) print_change(part, change, 0x1p20);
  fmt::print("{:<34}\n", "blocks");
  for (const auto& [state, change] : diff["blocks"].items()) print_change(state, change, 1);
  fmt::print("{} blocks are in another state\n", diff["changed_blocks"].dump());
}

int write_file(const std::string& path, const json& snapshot) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << snapshot.dump(-1, ' ', true, json::error_handler_t::replace) << '\n';
  out.close();
  if (!out)
    return fail({ErrorCode::kIo, fmt::format("--out {}: cannot be written", base::escape_for_log(path))});
  fmt::print("saved: {}\n", base::escape_for_log(path));
  return 0;
}

int diff(const Invocation& call) {
  const auto before = measure::load_snapshot(call.arguments[1]);
  if (!before) return fail(before.error());
  const auto after = measure::load_snapshot(call.arguments[2]);
  if (!after) return fail(after.error());
  const json changes = measure::diff_snapshots(*before, *after);
  call.settings.on("json") ? write_json(changes) : print_diff(changes);
  return 0;
}

}  // namespace

int run_snapshot(const Invocation& call) {
  const std::vector<std::string>& arguments = call.arguments;
  if (!arguments.empty() && arguments[0] == "diff") {
    if (arguments.size() == 3) return diff(call);
    return fail({ErrorCode::kUsage,
                 fmt::format("snapshot diff: {} files; two are needed: A B", arguments.size() - 1)});
  }
  if (arguments.size() != 1)
    return fail({ErrorCode::kUsage,
                 fmt::format("snapshot: {} arguments; one is needed, URL, or diff A B", arguments.size())});
  const auto snapshot = measure::take_snapshot(arguments[0], client_api_key());
  if (!snapshot) return fail(snapshot.error());
  if (const std::string& path = call.settings.text("out"); !path.empty()) return write_file(path, *snapshot);
  call.settings.on("json") ? write_json(*snapshot) : print_snapshot(*snapshot);
  return 0;
}

}  // namespace tally::apps
