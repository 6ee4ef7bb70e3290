// Which stored runs face each other.
#include "base/utf8.h"
#include "measure/compare.h"
#include "measure/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
namespace fs = std::filesystem;

bool is_run(const std::string& path) {
  std::error_code ec;
  return fs::is_regular_file(fs::path(path) / kHeadFile, ec);
}

bool is_same(const std::string& a, const std::string& b) {
  std::error_code ec;
  return a == b || fs::equivalent(a, b, ec);
}

struct Labelled {
  std::string label, path;
};

// Oldest first; complete runs and others alike: a gate says what is wrong with one.
Result<std::vector<Labelled>> runs_under(const std::string& directory) {
  std::vector<Labelled> out;
  for (const std::string& path : list_runs(directory)) {
    TALLY_TRY(const nlohmann::json head, load_head(path));
    out.push_back({text_at(head, "label"), path});
  }
  if (out.empty())
    return Error{ErrorCode::kNoInput,
                 fmt::format("{}: neither a stored run (no {} in it) nor a directory of some{}",
                             base::escape_for_log(directory), kHeadFile, runs_nearby(directory))};
  return out;
}

Result<PairPaths> pair_with_itself(const std::string& directory) {
  if (is_run(directory))
    return Error{
        ErrorCode::kUsage,
        fmt::format("{}: one run against itself says nothing of the machine's noise; give a directory of "
                    "at least 4 runs of one configuration, twice",
                    base::escape_for_log(directory))};
  TALLY_TRY(const std::vector<Labelled> runs, runs_under(directory));
  if (runs.size() < 4 || runs.size() % 2 != 0)
    return Error{
        ErrorCode::kUsage,
        fmt::format("{}: {} runs; an even number from 4 on is needed, each is compared with the next",
                    base::escape_for_log(directory), runs.size())};
  PairPaths out{{}, true};
  for (size_t i = 0; i < runs.size(); i += 2) out.pairs.emplace_back(runs[i].path, runs[i + 1].path);
  return out;
}

Result<PairPaths> pair_directories(const std::string& a, const std::string& b) {
  TALLY_TRY(std::vector<Labelled> of_a, runs_under(a));
  TALLY_TRY(std::vector<Labelled> of_b, runs_under(b));
  if (of_a.size() != of_b.size())
    return Error{ErrorCode::kUsage,
                 fmt::format("{} has {} runs and {} has {}: there must be as many", base::escape_for_log(a),
                             of_a.size(), base::escape_for_log(b), of_b.size())};
  auto by_label_a = of_a, by_label_b = of_b;
  const auto by_label = [](const Labelled& x, const Labelled& y) { return x.label < y.label; };
  std::stable_sort(by_label_a.begin(), by_label_a.end(), by_label);
  std::stable_sort(by_label_b.begin(), by_label_b.end(), by_label);
  const bool same_labels =
      std::equal(by_label_a.begin(), by_label_a.end(), by_label_b.begin(),
                 [](const Labelled& x, const Labelled& y) { return x.label == y.label; });
  if (same_labels) of_a.swap(by_label_a), of_b.swap(by_label_b);
  PairPaths out;
  for (size_t i = 0; i < of_a.size(); ++i) out.pairs.emplace_back(of_a[i].path, of_b[i].path);
  return out;
}

}  // namespace

Result<PairPaths> pair_paths(std::span<const std::string> arguments) {
  if (arguments.size() < 2 || arguments.size() % 2 != 0)
    return Error{ErrorCode::kUsage,
                 fmt::format("{} arguments; A B, or A1 B1 A2 B2 ... are expected", arguments.size())};
  if (arguments.size() == 2) {
    const std::string &a = arguments[0], &b = arguments[1];
    if (is_same(a, b)) return pair_with_itself(a);
    if (!is_run(a) && !is_run(b)) return pair_directories(a, b);
  }
  PairPaths out;
  for (size_t i = 0; i < arguments.size(); i += 2) {
    for (size_t j = i; j < i + 2; ++j) {
      if (!is_run(arguments[j])) return no_such_run(arguments[j]);
    }
    if (is_same(arguments[i], arguments[i + 1]))
      return Error{ErrorCode::kUsage,
                   fmt::format("{}: A and B of a pair are the same run", base::escape_for_log(arguments[i]))};
    out.pairs.emplace_back(arguments[i], arguments[i + 1]);
  }
  return out;
}

}  // namespace tally::measure
