// A comparison for machines.
#include "measure/compare.h"

#include <cmath>

namespace tally::measure {
namespace {

using nlohmann::json;

json number(const std::optional<double>& value) { return value ? json(*value) : json(nullptr); }

json metric_json(const ComparedMetric& m) {
  json out = {{"metric", m.name},
              {"class", m.class_name.empty() ? json(nullptr) : json(m.class_name)},
              {"unit", m.unit.empty() ? json(nullptr) : json(m.unit)},
              {"judged", m.judged},
              {"pairs", m.pairs},
              {"a", m.a},
              {"b", m.b},
              {"ratio", m.ratio},
              {"ci95", {number(m.low), number(m.high)}},
              {"p", m.p},
              {"cliffs_delta", number(m.cliffs_delta)},
              {"margin", std::exp(margin(m.kind)) - 1},
              {"detectable_ratio", number(m.detectable)},
              {"pair_ratios", m.pair_ratios}};
  if (!m.judged) return out;
  out["p_holm"] = m.p_holm;
  out["verdict"] = verdict_word(m.verdict);
  out["pairs_needed"] = m.pairs_needed ? json(*m.pairs_needed) : json(nullptr);
  return out;
}

}  // namespace

json comparison_json(const Comparison& c) {
  json metrics = json::array(), gates = json::array(), changes = json::array();
  for (const ComparedMetric& m : c.metrics) metrics.push_back(metric_json(m));
  for (const Gate& g : c.gates)
    gates.push_back({{"what", g.what}, {"value", g.value}, {"limit", g.limit}, {"passed", g.passed}});
  for (const ChangedSetting& s : c.changes) changes.push_back({{"name", s.name}, {"a", s.a}, {"b", s.b}});
  return {{"verdict", verdict_word(c.verdict)},
          {"exit_code", exit_code(c)},
          {"pairs", c.pairs},
          {"requests", c.requests},
          {"metrics", std::move(metrics)},
          {"gates", std::move(gates)},
          {"settings_diff", std::move(changes)},
          {"warnings", c.warnings},
          {"stats_method",
           "per-request log ratios, median of a pair; Hodges-Lehmann over pairs; 95 % interval of the exact "
           "signed-rank test; exact sign-flip p; Holm over the metrics that get a verdict"}};
}

}  // namespace tally::measure
