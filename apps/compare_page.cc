#include "compare_page.h"

#include "base/utf8.h"
#include "cli.h"
#include "measure/shown.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace tally::apps {
namespace {

using measure::ComparedMetric;
using measure::Gate;
using measure::MetricKind;
using measure::three_digits;
using nlohmann::json;

constexpr size_t kNameMin = 26, kNameMax = 48;  // columns of a metric's name

// The metric that made the verdict of the whole.
const ComparedMetric* deciding(const measure::Comparison& c) {
  const auto at = std::find_if(c.metrics.begin(), c.metrics.end(),
                               [&](const ComparedMetric& m) { return m.judged && m.verdict == c.verdict; });
  return at == c.metrics.end() ? nullptr : &*at;
}

const char* plural(size_t n) { return n == 1 ? "" : "s"; }

}  // namespace

Unit unit_of(const ComparedMetric& m) {
  if (!m.unit.empty()) return {m.unit.c_str(), 1};
  if (m.kind == MetricKind::kLatency) return {"ms", 1e3};
  if (m.kind == MetricKind::kMemory) return {"MiB", 0x1p-20};
  return {m.name == "output_throughput" ? "tok/s" : "req/s", 1};
}

std::string interval_text(const ComparedMetric& m) {
  return m.low ? fmt::format("{:.3f} .. {:.3f}", *m.low, *m.high) : "-";
}

std::string verdict_text(const ComparedMetric& m) {
  std::string out = measure::verdict_word(m.verdict);
  if (m.pairs_needed)
    out += fmt::format("  needs about {} more pair{}", *m.pairs_needed, *m.pairs_needed == 1 ? "" : "s");
  else if (measure::is_undecided(m.verdict))
    out += "  lies on the margin: no number of pairs decides";
  return out;
}

void ComparePage::print_json() const {
  json out = measure::comparison_json(comparison);
  out["a"] = name_a, out["b"] = name_b, out["same_configuration"] = same, out["runs"] = paths;
  out["noise"] = noise != nullptr ? measure::noise_json(*noise) : json(nullptr);
  write_json(out);
}

// What, how much, and the word.
void ComparePage::print_heading() const {
  const measure::Comparison& c = comparison;
  fmt::print("A {}\nB {}\n{} pair{}, ", base::escape_for_log(name_a), base::escape_for_log(name_b), c.pairs,
             plural(c.pairs));
  if (c.requests > 0) fmt::print("{} requests completed in both arms; ", c.requests);
  if (c.changes.size() == 1) {
    const measure::ChangedSetting& change = c.changes.front();
    fmt::print("1 variable changed: {} {} -> {}\n", base::escape_for_log(change.name),
               base::escape_for_log(change.a), base::escape_for_log(change.b));
  } else {
    fmt::print("{}\n", c.changes.empty() ? "no setting differs"
                                         : fmt::format("{} variables changed", c.changes.size()));
    for (const measure::ChangedSetting& change : c.changes)
      fmt::print("  {} {} -> {}\n", base::escape_for_log(change.name), base::escape_for_log(change.a),
                 base::escape_for_log(change.b));
  }
  const ComparedMetric* m = deciding(c);
  fmt::print(
      "{}{}\n\n", measure::verdict_word(c.verdict),
      m == nullptr || c.verdict == measure::Verdict::kSame
          ? ""
          : fmt::format(": {} of B against A {:.3f} x, 95 % {}", m->name, m->ratio, interval_text(*m)));
}

void ComparePage::print_rows(bool judged) const {
  size_t width = kNameMin;
  bool any = false;
  for (const ComparedMetric& m : comparison.metrics) {
    if (m.judged != judged) continue;
    width = std::clamp(m.name.size() + 2, width, kNameMax), any = true;
  }
  if (!any) return;
  fmt::print("{:<{}}{:>10}{:>10} {:<6}{:>8}  {:<16}{:>8}{:>8}  {}\n",
             judged ? "better is > 1" : "without a verdict", width, "A", "B", "", "ratio", "95 %",
             judged ? "p Holm" : "p", "Cliff", judged ? "verdict" : "");
  for (const ComparedMetric& m : comparison.metrics) {
    if (m.judged != judged) continue;
    const Unit unit = unit_of(m);
    const std::string name = m.class_name.empty() ? m.name : fmt::format("{} {}", m.name, m.class_name);
    fmt::print("{:<{}}{:>10}{:>10} {:<6}{:>8.3f}  {:<16}{:>8.4f}{:>8}  {}\n",
               base::escape_for_log(name, width - 1), width, three_digits(m.a * unit.scale),
               three_digits(m.b * unit.scale), unit.name, m.ratio, interval_text(m), judged ? m.p_holm : m.p,
               m.cliffs_delta ? fmt::format("{:+.2f}", *m.cliffs_delta) : "-", judged ? verdict_text(m) : "");
  }
  fmt::print("\n");
}

void ComparePage::print_gates() const {
  for (const Gate& gate : comparison.gates) {
    if (!gate.passed)
      fmt::print("INVALID: {}: {}; must be: {}\n", base::escape_for_log(gate.what),
                 base::escape_for_log(gate.value), gate.limit);
  }
  for (const std::string& warning : comparison.warnings)
    fmt::print("warning: {}\n", base::escape_for_log(warning));
}

void ComparePage::print_noise() const {
  if (noise == nullptr) {
    fmt::print(
        "this machine's noise is not known: tally compare DIR DIR, of a directory of runs of one "
        "configuration, measures it\n");
    return;
  }
  fmt::print("noise of this machine ({} pairs of one configuration, {}): smallest ratio that shows\n",
             noise->pairs,
             base::escape_for_log(noise->workload.empty() ? "workload unknown" : noise->workload));
  const json stored = measure::noise_json(*noise);
  for (const auto& [name, metric] : stored["metrics"].items())
    fmt::print("  {:<24}{:>8.3f} with 8 pairs {:>8.3f} with 20\n", base::escape_for_log(name, 24),
               metric["detectable_ratio_8"].get<double>(), metric["detectable_ratio_20"].get<double>());
  if (same) fmt::print("saved: {}\n", base::escape_for_log(noise_path));
}

void ComparePage::print_table() const {
  print_heading();
  print_rows(true);
  print_rows(false);
  print_gates();
  print_noise();
}

}  // namespace tally::apps
