// Benches without a server, compared row by row.
#include "base/check.h"
#include "base/utf8.h"
#include "measure/compare_gates.h"
#include "measure/compare_weigh.h"
#include "measure/pairs.h"
#include "measure/quantile.h"
#include "measure/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using nlohmann::json;

// How the rows of a bench are told apart and what they are compared by.
struct BenchKind {
  std::string_view command;
  std::vector<const char*> keys;  // of a row; those that vary make its name
  const char *rate, *unit;
  double scale;  // from the rate to the unit
};

const BenchKind* kind_of(const Run& run) {
  static const BenchKind kKinds[] = {
      {"bench engine",
       {"phase", "prompt", "decode", "batch", "depth", "depth_blocks", "kv_type", "threads"},
       "tokens_per_second",
       "tok/s",
       1},
      {"bench kernel", {"type", "isa", "rows", "k", "tokens", "threads"}, "bytes_per_second", "GB/s", 1e-9},
      {"bench attention",
       {"phase", "form", "kv_type", "isa", "heads", "kv_heads", "head_dim", "context", "tokens", "threads"},
       "ops_per_second",
       "Gop/s",
       1e-9}};
  const std::string command = text_at(run.head, "command");
  const auto at = std::find_if(std::begin(kKinds), std::end(kKinds),
                               [&](const BenchKind& k) { return k.command == command; });
  return at == std::end(kKinds) ? nullptr : at;
}

// What was measured, and each repetition's time.
struct Row {
  std::vector<std::string> key;
  double rate = 0;
  std::vector<double> seconds;
};

std::string key_text(const json& row, const char* key) {
  const auto at = row.find(key);
  if (at == row.end()) return "";
  return at->is_string() ? at->get<std::string>() : line_of(*at);
}

Result<std::vector<Row>> rows_of(const Run& run, const BenchKind& kind, const std::string& who) {
  const auto bad = [&](const std::string& what) {
    return Error{ErrorCode::kBadData, fmt::format("{}: results.rows: {}", who, what)};
  };
  const json results = run.head.value("results", json::object());
  if (!results.contains("rows") || !results["rows"].is_array()) return bad("a list is expected");
  std::vector<Row> out;
  for (const json& row : results["rows"]) {
    if (!row.is_object() || !row.contains(kind.rate) || !row[kind.rate].is_number() ||
        !row.contains("seconds") || !row["seconds"].is_array() || row["seconds"].empty())
      return bad(fmt::format("{} instead of a row with {} and seconds",
                             base::escape_for_log(line_of(row), 64), kind.rate));
    Row& made = out.emplace_back();
    for (const char* key : kind.keys) made.key.push_back(key_text(row, key));
    made.rate = row[kind.rate].get<double>();
    for (const json& seconds : row["seconds"]) {
      if (!seconds.is_number() || !(seconds.get<double>() > 0))
        return bad("seconds: numbers above 0 are expected");
      made.seconds.push_back(seconds.get<double>());
    }
  }
  return out;
}

const Row* row_like(const std::vector<Row>& rows, const Row& row) {
  const auto at = std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.key == row.key; });
  return at == rows.end() ? nullptr : &*at;
}

// "decode batch 8 int8": the first key, and those that differ among the rows which have that in common.
std::string name_of(const BenchKind& kind, const Row& row, const std::vector<Row>& all) {
  std::string out = row.key[0];
  for (size_t i = 1; i < kind.keys.size(); ++i) {
    const bool varies = std::any_of(all.begin(), all.end(), [&](const Row& r) {
      return r.key[0] == row.key[0] && r.key[i] != row.key[i];
    });
    const bool is_number = !row.key[i].empty() && row.key[i][0] >= '0' && row.key[i][0] <= '9';
    if (varies) out += fmt::format(" {}{}", is_number ? fmt::format("{} ", kind.keys[i]) : "", row.key[i]);
  }
  return out;
}

// Log ratios of times, repetition by repetition.
std::vector<double> ratios_of(const Row& a, const Row& b) {
  std::vector<double> out;
  for (size_t i = 0; i < std::min(a.seconds.size(), b.seconds.size()); ++i)
    out.push_back(std::log(a.seconds[i] / b.seconds[i]));  // of rates: more is better
  return out;
}

struct BenchPair {
  std::vector<Row> a, b;
};

std::optional<ComparedMetric> compare_row(const std::vector<BenchPair>& pairs, const Row& row) {
  ComparedMetric out;
  out.kind = MetricKind::kRate, out.judged = true;
  std::vector<double> differences, rates_a, rates_b;
  for (const BenchPair& pair : pairs) {
    const Row *a = row_like(pair.a, row), *b = row_like(pair.b, row);
    if (a == nullptr || b == nullptr) continue;
    rates_a.push_back(a->rate), rates_b.push_back(b->rate);
    std::vector<double> ratios = ratios_of(*a, *b);
    if (pairs.size() > 1) {
      differences.push_back(median_of(std::move(ratios)));
      continue;
    }
    ratios.resize(std::min(ratios.size(), kPairsMax));
    differences = std::move(ratios);
  }
  if (differences.empty()) return std::nullopt;
  out.a = median_of(std::move(rates_a)), out.b = median_of(std::move(rates_b));
  weigh(out, differences);
  return out;
}

void check_pair(Comparison& out, const RunPair& pair, size_t number) {
  for (const auto& [run, arm] : {std::pair{pair.a, 'A'}, {pair.b, 'B'}}) {
    const std::string status = text_at(run->head, "status");
    out.gates.push_back(
        {fmt::format("{}{} complete", arm, number), status, "complete", status == "complete"});
    for (const std::string& warning : run->head.value("warnings", std::vector<std::string>()))
      out.warnings.push_back(fmt::format("{}{}: {}", arm, number, warning));
  }
  const std::string a = text_of(pair.a->head, "model", "path_basename"),
                    b = text_of(pair.b->head, "model", "path_basename");
  out.gates.push_back(
      {fmt::format("pair {}: model", number), a == b ? a : fmt::format("{} and {}", a, b), "equal", a == b});
  if (text_of(pair.a->head, "machine", "fingerprint") != text_of(pair.b->head, "machine", "fingerprint"))
    out.warnings.push_back(fmt::format("pair {}: the runs come from different machines", number));
  for (ChangedSetting& change : changes_of(pair)) {
    const bool known = std::any_of(out.changes.begin(), out.changes.end(),
                                   [&](const ChangedSetting& c) { return c.name == change.name; });
    if (!known) out.changes.push_back(std::move(change));
  }
}

}  // namespace

bool is_bench(const Run& run) { return kind_of(run) != nullptr; }

Result<Comparison> compare_benches(std::span<const RunPair> pairs) {
  TALLY_CHECK(!pairs.empty(), "compare_benches of no pair");
  const BenchKind* kind = kind_of(*pairs.front().a);
  Comparison out;
  out.pairs = pairs.size();
  std::vector<BenchPair> rows;
  for (const RunPair& pair : pairs) {
    const size_t number = rows.size() + 1;
    if (kind == nullptr || kind_of(*pair.a) != kind || kind_of(*pair.b) != kind)
      return Error{ErrorCode::kUsage,
                   fmt::format("pair {}: runs of {} and {}; all must be of one command", number,
                               text_at(pair.a->head, "command"), text_at(pair.b->head, "command"))};
    TALLY_TRY(std::vector<Row> a, rows_of(*pair.a, *kind, fmt::format("A{}", number)));
    TALLY_TRY(std::vector<Row> b, rows_of(*pair.b, *kind, fmt::format("B{}", number)));
    rows.push_back({std::move(a), std::move(b)});
    check_pair(out, pair, number);
  }
  for (const Row& row : rows.front().a) {
    auto metric = compare_row(rows, row);
    if (!metric) continue;
    metric->name = name_of(*kind, row, rows.front().a);
    metric->unit = kind->unit, metric->a *= kind->scale, metric->b *= kind->scale;
    out.metrics.push_back(std::move(*metric));
  }
  if (out.metrics.empty()) return Error{ErrorCode::kBadData, "no row is in both runs"};
  if (pairs.size() == 1)
    out.warnings.push_back(
        "one run of each: repetitions do not tell what differs from run to run; A1 B1 A2 B2 ..., measured in "
        "turns, does");
  Comparison* const alone[] = {&out};
  judge_together(alone);
  return out;
}

}  // namespace tally::measure
