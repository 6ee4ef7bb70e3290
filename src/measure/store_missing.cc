// What is said where a stored run was asked for and none is there.
#include "base/settings.h"
#include "base/utf8.h"
#include "measure/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace tally::measure {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNewestNamed = 3;    // names in a message
constexpr size_t kPathShownMax = 80;  // bytes of a path in a message

std::string shown_path(const std::string& path) { return base::escape_for_log(path, kPathShownMax); }

// The directory in which a run of that path would be: its own, where it holds runs, the one above, or the
// default.
std::string home_of(const std::string& path) {
  fs::path asked(path);
  if (!asked.has_filename()) asked = asked.parent_path();
  const std::string above = asked.has_parent_path() ? asked.parent_path().string() : ".";
  for (const std::string& directory : {path, above})
    if (!list_runs(directory).empty()) return directory;
  return std::string(kRunsDirectory);
}

}  // namespace

std::string runs_nearby(const std::string& path) {
  const std::string home = home_of(path);
  const std::vector<std::string> runs = list_runs(home);  // oldest first
  if (runs.empty()) return fmt::format("; there is none in {} either", shown_path(home));
  std::vector<std::string> names;
  for (const std::string& run : runs) names.push_back(fs::path(run).filename().string());
  const std::vector<std::string_view> known(names.begin(), names.end());
  fs::path asked(path);
  if (!asked.has_filename()) asked = asked.parent_path();
  std::string out;
  if (const auto near = base::nearest_name(asked.filename().string(), known))
    out = fmt::format("; did you mean {}?", shown_path((fs::path(home) / *near).string()));
  out += fmt::format("; the newest in {}:", shown_path(home));
  for (size_t i = 0; i < std::min(kNewestNamed, names.size()); ++i)
    out += fmt::format("{} {}", i == 0 ? "" : ",", shown_path(names[names.size() - 1 - i]));
  return out + (names.size() > kNewestNamed ? fmt::format(" (and {} more: tally runs {})",
                                                          names.size() - kNewestNamed, shown_path(home))
                                            : "");
}

base::Error no_such_run(const std::string& path) {
  return {base::ErrorCode::kNoInput,
          fmt::format("{}: no stored run: it has no {}{}", shown_path(path), kHeadFile, runs_nearby(path))};
}

}  // namespace tally::measure
