#include "measure/compare.h"

#include "base/check.h"
#include "measure/compare_gates.h"
#include "measure/compare_weigh.h"
#include "measure/pairs.h"
#include "measure/quantile.h"
#include "measure/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

namespace tally::measure {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using nlohmann::json;

constexpr size_t kWarningsShown = 8;

// A request completed in both runs of a pair.
struct Match {
  std::string class_name;
  RequestFigures a, b;
};

// What one pair has to say, worked out once.
struct PairView {
  RunPair runs;
  std::vector<Match> matches;
  PairFigures figures;
};

// A latency of a request, told apart by name. Zero or less has no logarithm and is left out.
struct RequestMetric {
  const char* name;
  std::optional<double> RequestFigures::* value;
};
constexpr RequestMetric kRequestMetrics[] = {
    {"ttft", &RequestFigures::ttft_s}, {"tpot", &RequestFigures::tpot_s}, {"e2e", &RequestFigures::e2e_s}};

// A figure of a whole run; absent where the run does not have it.
struct RunMetric {
  const char* name;
  MetricKind kind;
  bool judged;
  std::optional<double> (*value)(const Run&, const Figures&);
};

std::optional<double> result_of(const Run& run, const char* key) {
  const json* at = run.head.is_object() && run.head.contains("results") ? &run.head["results"] : nullptr;
  if (at == nullptr || !at->is_object() || !at->contains(key) || !(*at)[key].is_number()) return std::nullopt;
  return (*at)[key].get<double>();
}

template <Distribution Figures::* kOf, Percentile Distribution::* kWhich>
std::optional<double> percentile_of(const Run&, const Figures& f) {
  const Distribution& d = f.*kOf;
  return d.n > 0 ? std::optional((d.*kWhich).value) : std::nullopt;
}

constexpr RunMetric kRunMetrics[] = {
    {"output_throughput", MetricKind::kRate, true,
     [](const Run&, const Figures& f) { return std::optional(f.output_throughput); }},
    {"request_goodput", MetricKind::kRate, true,
     [](const Run& run, const Figures&) { return result_of(run, "request_goodput"); }},
    {"peak_memory", MetricKind::kMemory, true,
     [](const Run& run, const Figures&) { return peak_memory(run); }},
    {"ttft_p95", MetricKind::kLatency, false, percentile_of<&Figures::ttft_planned, &Distribution::p95>},
    {"ttft_p99", MetricKind::kLatency, false, percentile_of<&Figures::ttft_planned, &Distribution::p99>},
    {"tpot_p95", MetricKind::kLatency, false, percentile_of<&Figures::tpot, &Distribution::p95>},
    {"tpot_p99", MetricKind::kLatency, false, percentile_of<&Figures::tpot, &Distribution::p99>},
    {"itl_p99", MetricKind::kLatency, false, percentile_of<&Figures::itl, &Distribution::p99>},
    {"e2e_p95", MetricKind::kLatency, false, percentile_of<&Figures::e2e_planned, &Distribution::p95>},
    {"e2e_p99", MetricKind::kLatency, false, percentile_of<&Figures::e2e_planned, &Distribution::p99>},
};

Result<PairView> view_of(const RunPair& runs, size_t number) {
  PairView out{runs, {}, {figures_of(runs.a->requests), figures_of(runs.b->requests)}};
  std::unordered_map<uint32_t, const RequestRecord*> of_a;
  for (const RequestRecord& r : runs.a->requests) {
    if (!of_a.emplace(r.id, &r).second)
      return Error{ErrorCode::kBadData, fmt::format("A{}: id {} stands there twice", number, r.id)};
  }
  std::unordered_set<uint32_t> seen;
  for (const RequestRecord& b : runs.b->requests) {
    if (!seen.insert(b.id).second)
      return Error{ErrorCode::kBadData, fmt::format("B{}: id {} stands there twice", number, b.id)};
    const auto a = of_a.find(b.id);
    if (a == of_a.end() || !a->second->completed() || !b.completed()) continue;
    out.matches.push_back({b.class_name, request_figures(*a->second), request_figures(b)});
  }
  if (out.matches.empty())
    return Error{ErrorCode::kBadData,
                 fmt::format("pair {}: no request completed in both runs ({} and {} completed)", number,
                             out.figures.a.completed, out.figures.b.completed)};
  return out;
}

std::optional<ComparedMetric> compare_requests(std::span<const PairView> pairs, const RequestMetric& metric,
                                               const std::string& class_name) {
  ComparedMetric out;
  out.name = metric.name, out.class_name = class_name, out.judged = class_name.empty();
  std::vector<double> differences, medians_a, medians_b, all_a, all_b;
  for (const PairView& pair : pairs) {
    std::vector<double> a, b, of_requests;
    for (const Match& m : pair.matches) {
      const auto &x = m.a.*metric.value, &y = m.b.*metric.value;
      if ((!class_name.empty() && m.class_name != class_name) || !x || !y || *x <= 0 || *y <= 0) continue;
      of_requests.push_back(std::log(*y / *x));
      a.push_back(*x), b.push_back(*y);
    }
    if (a.empty()) continue;
    differences.push_back(median_of(std::move(of_requests)));
    all_a.insert(all_a.end(), a.begin(), a.end()), all_b.insert(all_b.end(), b.begin(), b.end());
    medians_a.push_back(median_of(std::move(a))), medians_b.push_back(median_of(std::move(b)));
  }
  if (differences.empty()) return std::nullopt;
  out.a = median_of(std::move(medians_a)), out.b = median_of(std::move(medians_b));
  out.cliffs_delta = cliffs_delta(std::move(all_a), std::move(all_b));  // of times: A above B is good
  weigh(out, differences);
  return out;
}

std::optional<ComparedMetric> compare_figure(std::span<const PairView> pairs, const RunMetric& metric) {
  ComparedMetric out;
  out.name = metric.name, out.kind = metric.kind, out.judged = metric.judged;
  std::vector<double> differences, values_a, values_b;
  for (const PairView& pair : pairs) {
    const auto a = metric.value(*pair.runs.a, pair.figures.a), b = metric.value(*pair.runs.b, pair.figures.b);
    if (!a || !b || *a <= 0 || *b <= 0) continue;
    differences.push_back(std::log(*b / *a));
    values_a.push_back(*a), values_b.push_back(*b);
  }
  if (differences.empty()) return std::nullopt;
  out.a = median_of(std::move(values_a)), out.b = median_of(std::move(values_b));
  weigh(out, differences);
  return out;
}

std::vector<std::string> classes_of(std::span<const PairView> pairs) {
  std::vector<std::string> out;
  for (const PairView& pair : pairs) {
    for (const Match& m : pair.matches) {
      if (std::find(out.begin(), out.end(), m.class_name) == out.end()) out.push_back(m.class_name);
    }
  }
  std::sort(out.begin(), out.end());
  if (out.size() == 1) out.clear();  // one class is all
  return out;
}

std::vector<ComparedMetric> compare_all(std::span<const PairView> pairs) {
  std::vector<ComparedMetric> out;
  const auto keep = [&](std::optional<ComparedMetric> metric) {
    if (metric) out.push_back(std::move(*metric));
  };
  for (const RequestMetric& metric : kRequestMetrics) keep(compare_requests(pairs, metric, ""));
  for (const RunMetric& metric : kRunMetrics) keep(compare_figure(pairs, metric));
  for (const std::string& name : classes_of(pairs)) {
    for (const RequestMetric& metric : kRequestMetrics) keep(compare_requests(pairs, metric, name));
  }
  return out;
}

// What the machine can show with so many pairs, where its noise is known.
void calibrate(std::vector<ComparedMetric>& metrics, const Noise* noise) {
  for (ComparedMetric& m : metrics) {
    if (noise != nullptr && m.judged && noise->sd.contains(m.name) && m.pairs >= 2)
      m.detectable = std::exp(detectable_difference(noise->sd.at(m.name), m.pairs));
  }
}

Evidence evidence_of(const ComparedMetric& m) {
  Evidence out{
      std::log(m.ratio), std::log(m.low.value_or(1)), std::log(m.high.value_or(1)), m.p_holm, m.pairs, {}};
  if (m.detectable) out.detectable = std::log(*m.detectable);
  return out;
}

// Nobody should miss what got worse.
void conclude(Comparison& c) {
  c.verdict = Verdict::kSame;
  for (const ComparedMetric& m : c.metrics)
    if (m.judged) c.verdict = graver(c.verdict, m.verdict);
  if (std::all_of(c.gates.begin(), c.gates.end(), [](const Gate& gate) { return gate.passed; })) return;
  c.verdict = Verdict::kInvalid;
  for (ComparedMetric& m : c.metrics) {
    m.verdict = Verdict::kInvalid;
    m.pairs_needed.reset();
  }
}

// Changes that every pair has in common come once.
void add_changes(std::vector<ChangedSetting>& to, const RunPair& pair) {
  for (ChangedSetting& change : changes_of(pair)) {
    const bool known = std::any_of(to.begin(), to.end(), [&](const ChangedSetting& c) {
      return c.name == change.name && c.a == change.a && c.b == change.b;
    });
    if (!known) to.push_back(std::move(change));
  }
}

}  // namespace

void weigh(ComparedMetric& out, std::span<const double> differences) {
  const double better_sign = out.kind == MetricKind::kRate ? 1 : -1;
  std::vector<double> gains;
  for (const double d : differences) {
    gains.push_back(better_sign * d);
    out.pair_ratios.push_back(std::exp(gains.back()));
  }
  out.pairs = gains.size();
  out.ratio = std::exp(hodges_lehmann(gains));
  out.p = sign_flip_p(gains);
  if (const auto interval = walsh_interval(gains))
    out.low = std::exp(interval->low), out.high = std::exp(interval->high);
}

Result<Comparison> compare_runs(std::span<const RunPair> pairs, const Noise* noise) {
  TALLY_CHECK(!pairs.empty(), "compare_runs of no pair");
  if (pairs.size() > kPairsMax)
    return Error{ErrorCode::kUsage, fmt::format("{} pairs; at most {} are allowed", pairs.size(), kPairsMax)};
  Comparison out;
  out.pairs = pairs.size();
  std::vector<PairView> views;
  for (size_t i = 0; i < pairs.size(); ++i) {
    TALLY_TRY(PairView view, view_of(pairs[i], i + 1));
    out.requests += view.matches.size();
    for (Gate& gate : gates_of(pairs[i], view.figures, i + 1)) out.gates.push_back(std::move(gate));
    for (std::string& warning : warnings_of(pairs[i], view.figures, i + 1))
      out.warnings.push_back(std::move(warning));
    add_changes(out.changes, pairs[i]);
    views.push_back(std::move(view));
  }
  if (out.warnings.size() > kWarningsShown) {
    const size_t more = out.warnings.size() - kWarningsShown;
    out.warnings.resize(kWarningsShown);
    out.warnings.push_back(fmt::format("and {} more like these", more));
  }
  const auto& head = pairs.front().a->head;
  if (noise != nullptr && (noise->machine != text_of(head, "machine", "fingerprint") ||
                           noise->workload != text_of(head, "workload", "name"))) {
    out.warnings.push_back("the noise on file is another machine's or workload's: not used");
    noise = nullptr;
  }
  out.metrics = compare_all(views);
  calibrate(out.metrics, noise);
  Comparison* const alone[] = {&out};
  judge_together(alone);
  return out;
}

void judge_together(std::span<Comparison* const> comparisons) {
  std::vector<ComparedMetric*> judged;
  std::vector<double> p;
  for (Comparison* comparison : comparisons) {
    for (ComparedMetric& m : comparison->metrics) {
      if (!m.judged) continue;
      judged.push_back(&m);
      p.push_back(m.p);
    }
  }
  const std::vector<double> adjusted = holm(p);
  for (size_t i = 0; i < judged.size(); ++i) {
    ComparedMetric& m = *judged[i];
    m.p_holm = adjusted[i];
    m.verdict = judge(evidence_of(m), m.kind);
    m.pairs_needed.reset();
    if (is_undecided(m.verdict)) m.pairs_needed = pairs_needed(evidence_of(m), m.kind, judged.size());
  }
  for (Comparison* comparison : comparisons) conclude(*comparison);
}

std::optional<double> peak_memory(const Run& run) {
  if (const auto peak = result_of(run, "peak_rss_anon_bytes")) return peak;
  std::optional<double> peak;
  for (const MemorySample& m : run.memory) {
    if (m.rss_anon) peak = std::max(peak.value_or(0), static_cast<double>(*m.rss_anon));
  }
  return peak;
}

int exit_code(const Comparison& c) { return exit_code(c.verdict); }

}  // namespace tally::measure
