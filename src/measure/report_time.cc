// What happened when: load, memory and gaps between tokens on a grid of time.
#include "measure/report_parts.h"
#include "measure/store.h"
#include "measure/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>

namespace tally::measure {
namespace {

using nlohmann::json;

constexpr size_t kColumns = 400;        // of a curve
constexpr size_t kArrivalColumns = 60;  // of a rate
constexpr size_t kGapColumns = 90, kGapRowsPerDecade = 8;
constexpr double kGapLeastMs = .1, kGapMostMs = 1e5;

// Equal pieces of [0, span_s].
struct Grid {
  double span_s = 1;
  size_t columns = 1;

  double width_s() const { return span_s / static_cast<double>(columns); }
  size_t column(double at_s) const {
    const double share = std::clamp(at_s / span_s, 0., 1.);
    return std::min(columns - 1, static_cast<size_t>(share * static_cast<double>(columns)));
  }
  json edges() const {
    json out = json::array();
    for (size_t i = 0; i < columns; ++i) out.push_back(rounded(static_cast<double>(i) * width_s()));
    return out;
  }
};

// A quantity known at some instants, which holds until the next: the largest value of each column.
class Curve {
 public:
  explicit Curve(const Grid& grid) : grid_(grid), most_(grid.columns), last_(grid.columns) {}

  void add(double at_s, double value) {
    const size_t column = grid_.column(at_s);
    most_[column] = std::max(most_[column].value_or(value), value), last_[column] = value;
    ++count_;
  }
  size_t count() const { return count_; }

  json values() const {
    json out = json::array();
    std::optional<double> held;
    for (size_t i = 0; i < most_.size(); ++i) {
      const std::optional<double> value = std::max(most_[i], held);  // an absent one is less than any
      out.push_back(value ? json(rounded(*value)) : json(nullptr));
      if (last_[i]) held = last_[i];
    }
    return out;
  }

 private:
  const Grid grid_;
  std::vector<std::optional<double>> most_, last_;  // of each column
  size_t count_ = 0;
};

// Requests between sending and end, as the client knows without asking anybody.
json under_way(const Run& run, const Grid& grid) {
  std::vector<std::pair<double, int>> changes;
  for (const RequestRecord& r : run.requests) {
    changes.emplace_back(r.planned_s, 1);
    changes.emplace_back(r.end_s, -1);
  }
  std::sort(changes.begin(), changes.end());
  Curve curve(grid);
  int now = 0;
  for (const auto& [at_s, change] : changes) curve.add(at_s, now += change);
  return curve.values();
}

json arrivals(const Run& run, const Grid& grid) {
  std::vector<double> counts(grid.columns);
  for (const RequestRecord& r : run.requests) counts[grid.column(r.planned_s)] += 1;
  for (double& count : counts) count /= grid.width_s();
  return {{"t", grid.edges()}, {"rate", rounded_array(counts)}};
}

struct LoadCurves {
  Curve running, waiting, kv_held, kv_cached;
  explicit LoadCurves(const Grid& grid) : running(grid), waiting(grid), kv_held(grid), kv_cached(grid) {}
};

// Of the step log: as things stood at the end of each step.
void from_steps(LoadCurves& out, const std::vector<RunStep>& steps) {
  for (const RunStep& s : steps) {
    out.running.add(s.end_s(), s.running), out.waiting.add(s.end_s(), s.waiting);
    if (s.kv_held_share) out.kv_held.add(s.end_s(), *s.kv_held_share);
    if (s.kv_cached_share) out.kv_cached.add(s.end_s(), *s.kv_cached_share);
  }
}

// Of the metrics sampled meanwhile.
void from_samples(LoadCurves& out, const Run& run) {
  for (const MemorySample& m : run.memory) {
    const auto add = [&](Curve& curve, const char* key) {
      if (const auto value = number_at(m.load, key)) curve.add(m.at_s, *value);
    };
    add(out.running, "running"), add(out.waiting, "waiting"), add(out.kv_held, "kv_usage");
  }
}

// Bytes of the accounts of one sample; the rest of the object are sums.
std::map<std::string, double> accounts_of(const json& sample) {
  std::map<std::string, double> out;
  for (const char* name : {"weights", "kv", "activations", "runtime"})
    if (const auto bytes = number_at(sample, name)) out[name] = *bytes;
  return out;
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double value) { low = std::min(low, value), high = std::max(high, value); }
  json pair() const { return low <= high ? json{rounded(low), rounded(high)} : json(nullptr); }
};

// Planned against measured, an account a row and the sum. A row's range is what was seen over the run.
json plan_rows(const Run& run, const json& last) {
  std::map<std::string, Range> reserved;
  Range measured, unaccounted;
  for (const MemorySample& m : run.memory) {
    for (const auto& [name, bytes] : accounts_of(m.accounts)) reserved[name].add(bytes);
    if (const auto rss = m.rss_anon)
      measured.add(static_cast<double>(*rss) + static_cast<double>(m.swap.value_or(0)));
    if (const auto bytes = number_at(m.accounts, "unaccounted_bytes")) unaccounted.add(*bytes);
  }
  json rows = json::array();
  const auto planned = [](const std::optional<double>& bytes) {
    return bytes ? json(*bytes) : json(nullptr);
  };
  for (const char* name : {"weights", "kv", "activations", "runtime"}) {
    if (!reserved.contains(name)) continue;
    rows.push_back({{"name", name},
                    {"planned", planned(number_at(object_at(last, "planned"), name))},
                    {"measured", reserved[name].pair()}});
  }
  if (rows.empty()) return rows;
  rows.push_back({{"name", "all"},
                  {"planned", planned(number_at(last, "planned_bytes"))},
                  {"measured", measured.pair()}});
  rows.push_back({{"name", "unaccounted"}, {"planned", nullptr}, {"measured", unaccounted.pair()}});
  return rows;
}

}  // namespace

double span_of(const Run& run, const std::vector<RunStep>& steps) {
  double span_s = 0;
  for (const RequestRecord& r : run.requests) span_s = std::max(span_s, r.end_s);
  if (run.requests.empty() && !run.memory.empty()) span_s = run.memory.back().at_s;
  if (run.requests.empty() && !steps.empty()) span_s = std::max(span_s, steps.back().end_s());
  return span_s;
}

json timeline_part(const Run& run, const std::vector<RunStep>& steps) {
  const double span_s = span_of(run, steps);
  if (run.requests.empty() || span_s <= 0) return why("The run has no requests.");
  const Grid grid{span_s, kColumns};
  LoadCurves curves(grid);
  steps.empty() ? from_samples(curves, run) : from_steps(curves, steps);
  json out = {{"t", grid.edges()},
              {"under_way", under_way(run, grid)},
              {"offered", arrivals(run, {span_s, kArrivalColumns})},
              {"source", !steps.empty()               ? "steps"
                         : curves.running.count() > 0 ? "samples"
                                                      : "requests"}};
  const auto put = [&](const char* name, const Curve& curve) {
    out[name] = curve.count() > 0 ? curve.values() : json(nullptr);
  };
  put("running", curves.running), put("waiting", curves.waiting);
  put("kv_held", curves.kv_held), put("kv_cached", curves.kv_cached);
  out["points"] = steps.empty() ? curves.running.count() : steps.size();
  out["columns"] = kColumns;
  json& recomputed = out["recomputed"] = json::array();
  for (const RunStep& s : steps)
    if (s.recompute_tokens > 0 && recomputed.size() < kColumns)
      recomputed.push_back({rounded(s.begin_s), s.recompute_tokens});
  return out;
}

json memory_part(const Run& run) {
  double span_s = 0;
  size_t count = 0;
  json last = nullptr;
  for (const MemorySample& m : run.memory) {
    count += m.rss_anon.has_value();
    if (m.rss_anon || m.accounts.is_object()) span_s = std::max(span_s, m.at_s);
    if (m.accounts.is_object()) last = m.accounts;
  }
  if (span_s <= 0 || (count == 0 && last.is_null()))
    return why(
        "Nothing is known of the server's memory: it ran on another machine, or the run has no "
        "memory.jsonl.");
  const Grid grid{span_s, kColumns};
  Curve rss(grid), file(grid);
  std::map<std::string, Curve> accounts;
  for (const MemorySample& m : run.memory) {
    if (m.rss_anon)
      rss.add(m.at_s, static_cast<double>(*m.rss_anon) + static_cast<double>(m.swap.value_or(0)));
    if (m.rss_file) file.add(m.at_s, static_cast<double>(*m.rss_file));
    for (const auto& [name, bytes] : accounts_of(m.accounts))
      accounts.try_emplace(name, grid).first->second.add(m.at_s, bytes);
  }
  json out = {{"t", grid.edges()}, {"samples", run.memory.size()}, {"columns", kColumns}};
  out["accounts"] = json::object();
  for (const auto& [name, curve] : accounts) out["accounts"][name] = curve.values();
  out["rss_anon"] = rss.count() > 0 ? rss.values() : json(nullptr);
  out["rss_file"] = file.count() > 0 ? file.values() : json(nullptr);
  for (const char* key : {"planned_bytes", "cap_bytes"}) {
    const auto bytes = number_at(last, key);
    out[key] = bytes && *bytes > 0 ? json(*bytes) : json(nullptr);
  }
  out["rows"] = plan_rows(run, last);
  return out;
}

json gaps_part(const Run& run) {
  const double span_s = span_of(run, {});
  if (run.requests.empty() || span_s <= 0) return why("The run has no requests.");
  const Grid grid{span_s, kGapColumns};
  std::map<std::pair<size_t, int>, uint32_t> cells;
  size_t gaps = 0;
  for (const RequestRecord& r : run.requests) {
    for (size_t i = 1; i < r.events.size(); ++i, ++gaps) {
      const double ms = std::clamp((r.events[i].at_s - r.events[i - 1].at_s) * 1e3, kGapLeastMs, kGapMostMs);
      const auto row = static_cast<int>(std::floor(std::log10(ms) * kGapRowsPerDecade));
      ++cells[{grid.column(r.events[i].at_s), row}];
    }
  }
  if (gaps == 0) return why("No answer came in more than one event: gaps are seen in streams only.");
  json out = {{"width_s", rounded(grid.width_s())},
              {"rows_per_decade", kGapRowsPerDecade},
              {"gaps", gaps},
              {"cells", json::array()}};
  for (const auto& [at, count] : cells) out["cells"].push_back({at.first, at.second, count});
  return out;
}

}  // namespace tally::measure
