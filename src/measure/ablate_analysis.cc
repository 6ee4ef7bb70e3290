// What the rounds of an ablation say.
#include "base/check.h"
#include "measure/ablate.h"
#include "measure/compare_gates.h"
#include "measure/pairs.h"
#include "measure/quantile.h"
#include "measure/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tally::measure {
namespace {

using base::Result;
using Rounds = std::span<const std::vector<Run>>;

Result<Comparison> compare_arms(Rounds rounds, const Contrast& arms, const Noise* noise) {
  std::vector<RunPair> pairs;
  for (const std::vector<Run>& round : rounds) pairs.push_back({&round[arms.from], &round[arms.to]});
  return compare_runs(pairs, noise);
}

ContrastResult contrast_of(const Ablation& ablation, const Contrast& arms, Comparison comparison) {
  ContrastResult out{arms, std::move(comparison), false, 0, 0, 0};
  out.equal_bits_wanted =
      must_give_equal_bits(ablation.design.arms[arms.from], ablation.design.arms[arms.to]);
  const auto &a = ablation.facts[arms.from].answers, &b = ablation.facts[arms.to].answers;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (!a[i].is_there() || !b[i].is_there()) continue;
    ++out.answers;
    out.equal_answers += a[i].bits == b[i].bits, out.equal_texts += a[i].text == b[i].text;
  }
  if (out.equal_bits_wanted && out.answers > 0)
    out.comparison.gates.push_back({"bits of greedy answers",
                                    fmt::format("{} of {} equal", out.equal_answers, out.answers),
                                    "all equal", out.equal_answers == out.answers});
  return out;
}

ArmFigures figures_of_arm(Rounds rounds, size_t arm) {
  std::map<std::string, std::vector<double>> values;
  for (const std::vector<Run>& round : rounds) {
    const Figures f = figures_of(round[arm].requests);
    if (f.completed == 0) continue;
    values["ttft_s"].push_back(f.ttft_planned.median);
    if (f.tpot.n > 0) values["tpot_s"].push_back(f.tpot.median);
    values["e2e_s"].push_back(f.e2e_planned.median);
    values["output_throughput"].push_back(f.output_throughput);
    if (const auto peak = peak_memory(round[arm])) values["peak_rss_anon_bytes"].push_back(*peak);
  }
  ArmFigures out;
  for (auto& [name, list] : values) out[name] = median_of(std::move(list));
  return out;
}

const ComparedMetric* metric_of(const Comparison& c, const std::string& name) {
  const auto at = std::find_if(c.metrics.begin(), c.metrics.end(),
                               [&](const ComparedMetric& m) { return m.judged && m.name == name; });
  return at == c.metrics.end() ? nullptr : &*at;
}

// Differences first: within each of the two pairs of a round, then between them.
Result<InteractionResult> interaction_of(Rounds rounds, const Interaction& arms, const Noise* noise) {
  TALLY_TRY(const Comparison first, compare_arms(rounds, {0, arms.first}, noise));
  TALLY_TRY(const Comparison second, compare_arms(rounds, {0, arms.second}, noise));
  TALLY_TRY(const Comparison both, compare_arms(rounds, {0, arms.both}, noise));
  TALLY_TRY(const Comparison after_first, compare_arms(rounds, {arms.first, arms.both}, noise));
  InteractionResult out{arms, {}};
  for (const ComparedMetric& m : after_first.metrics) {
    const ComparedMetric *x = metric_of(first, m.name), *y = metric_of(second, m.name),
                         *xy = metric_of(both, m.name);
    if (!m.judged || x == nullptr || y == nullptr || xy == nullptr) continue;
    if (m.pairs != rounds.size() || y->pairs != rounds.size()) continue;  // a round does not have it
    std::vector<double> values;
    for (size_t round = 0; round < rounds.size(); ++round)
      values.push_back(std::log(m.pair_ratios[round] / y->pair_ratios[round]));
    InteractionMetric metric{
        m.name, x->ratio, y->ratio, xy->ratio, std::exp(hodges_lehmann(values)), {}, {}, sign_flip_p(values)};
    if (const auto i = walsh_interval(values)) metric.low = std::exp(i->low), metric.high = std::exp(i->high);
    out.metrics.push_back(std::move(metric));
  }
  return out;
}

}  // namespace

Result<Ablation> analyse(const AblateDesign& design, Rounds rounds, std::vector<ArmFacts> facts,
                         const Noise* noise) {
  TALLY_CHECK(!rounds.empty() && facts.size() == design.arms.size(), "analyse", rounds.size(), facts.size());
  Ablation out;
  out.design = design, out.rounds = rounds.size(), out.facts = std::move(facts);
  for (const Contrast& arms : design.contrasts) {
    TALLY_TRY(Comparison comparison, compare_arms(rounds, arms, noise));
    out.contrasts.push_back(contrast_of(out, arms, std::move(comparison)));
  }
  std::vector<Comparison*> family;
  for (ContrastResult& contrast : out.contrasts) family.push_back(&contrast.comparison);
  judge_together(family);
  out.verdict = Verdict::kSame;
  for (const Comparison* comparison : family) {
    out.verdict = graver(out.verdict, comparison->verdict);
    out.tests += static_cast<size_t>(std::count_if(comparison->metrics.begin(), comparison->metrics.end(),
                                                   [](const ComparedMetric& m) { return m.judged; }));
    for (const std::string& warning : comparison->warnings)
      if (std::find(out.warnings.begin(), out.warnings.end(), warning) == out.warnings.end())
        out.warnings.push_back(warning);
  }
  for (const Interaction& arms : design.interactions) {
    TALLY_TRY(InteractionResult interaction, interaction_of(rounds, arms, noise));
    out.interactions.push_back(std::move(interaction));
  }
  for (size_t arm = 0; arm < design.arms.size(); ++arm) out.figures.push_back(figures_of_arm(rounds, arm));
  return out;
}

}  // namespace tally::measure
