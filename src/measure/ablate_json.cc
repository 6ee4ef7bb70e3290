// An ablation for machines.
#include "measure/ablate.h"
#include "measure/store.h"

#include <fmt/format.h>

namespace tally::measure {
namespace {

using nlohmann::json;

json number(const auto& value) { return value ? json(*value) : json(nullptr); }

json arm_json(const Ablation& a, size_t arm) {
  const ArmFacts& facts = a.facts[arm];
  json out = {{"name", a.design.arms[arm].name},
              {"flags", a.design.arms[arm].flags},
              {"settings", a.design.arms[arm].settings},
              {"figures", a.figures[arm]},
              {"kv_bytes_per_token", number(facts.kv_bytes_per_token)},
              {"planned_bytes", number(facts.planned_bytes)},
              {"quality", nullptr}};
  if (const auto& q = facts.quality)
    out["quality"] = {{"kld", q->kld}, {"kld_ci95", {q->kld_low, q->kld_high}}, {"same_top", q->same_top}};
  return out;
}

json contrast_json(const Ablation& a, const ContrastResult& c) {
  json out = comparison_json(c.comparison);
  out["from"] = a.design.arms[c.arms.from].name, out["to"] = a.design.arms[c.arms.to].name;
  out["equal_bits_wanted"] = c.equal_bits_wanted;
  out["answers"] = c.answers, out["equal_answers"] = c.equal_answers, out["equal_texts"] = c.equal_texts;
  return out;
}

json interaction_json(const InteractionResult& i) {
  json metrics = json::array();
  for (const InteractionMetric& m : i.metrics)
    metrics.push_back({{"metric", m.name},
                       {"first_ratio", m.first},
                       {"second_ratio", m.second},
                       {"both_ratio", m.both},
                       {"ratio", m.ratio},
                       {"ci95", {number(m.low), number(m.high)}},
                       {"p", m.p}});
  return {{"first", i.arms.first_name}, {"second", i.arms.second_name}, {"metrics", std::move(metrics)}};
}

}  // namespace

json ablation_json(const Ablation& a) {
  json out = {{"verdict", verdict_word(a.verdict)},
              {"exit_code", exit_code(a.verdict)},
              {"rounds", a.rounds},
              {"tests", a.tests},
              {"arms", json::array()},
              {"contrasts", json::array()},
              {"interactions", json::array()},
              {"notes", a.design.notes},
              {"warnings", a.warnings}};
  for (size_t arm = 0; arm < a.design.arms.size(); ++arm) out["arms"].push_back(arm_json(a, arm));
  for (const ContrastResult& c : a.contrasts) out["contrasts"].push_back(contrast_json(a, c));
  for (const InteractionResult& i : a.interactions) out["interactions"].push_back(interaction_json(i));
  return out;
}

Run ablation_run(const Ablation& a, const Run& first) {
  Run out;
  for (const char* key : {"build_id", "machine", "model", "settings", "started", "workload"})
    if (first.head.contains(key)) out.head[key] = first.head[key];
  std::vector<std::string> reasons;
  for (const ContrastResult& c : a.contrasts)
    for (const Gate& gate : c.comparison.gates)
      if (!gate.passed)
        reasons.push_back(fmt::format("{} against {}: {}: {}; must be: {}", a.design.arms[c.arms.to].name,
                                      a.design.arms[c.arms.from].name, gate.what, gate.value, gate.limit));
  out.head["schema"] = kSchema;
  out.head["status"] = "complete";
  out.head["valid"] = reasons.empty();
  out.head["invalid_reasons"] = std::move(reasons);
  out.head["warnings"] = a.warnings;
  out.head["results"] = ablation_json(a);
  out.head["stats_method"] =
      "rounds of every arm in random order; per-request log ratios, median of a pair; Hodges-Lehmann over "
      "rounds; 95 % interval of the exact signed-rank test; exact sign-flip p; Holm over all verdicts "
      "together";
  return out;
}

}  // namespace tally::measure
