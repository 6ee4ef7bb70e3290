#include "ablate_page.h"

#include "base/utf8.h"
#include "compare_page.h"
#include "measure/shown.h"
#include "terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace tally::apps {
namespace {

using measure::ComparedMetric;
using measure::ContrastResult;
using measure::three_digits;
using measure::Verdict;

constexpr size_t kNameShown = 28, kMetricShown = 20;
constexpr size_t kGatesShown = 3;
constexpr size_t kWidth = 80, kWidthMax = 160;  // columns; 80 without a terminal
constexpr size_t kAfterForest = 26;             // ratio and verdict
constexpr double kSpanMin = .1;                 // of the logarithm to either side

std::string shown(const std::string& name) { return base::escape_for_log(name, kNameShown); }

// "-" where the arm has no such figure.
std::string figure(const measure::ArmFigures& figures, const char* name, double scale) {
  const auto at = figures.find(name);
  return at == figures.end() ? "-" : three_digits(at->second * scale);
}

std::string mebibytes(const std::optional<uint64_t>& bytes) {
  return bytes ? three_digits(static_cast<double>(*bytes) / 0x1p20) : "-";
}

std::string quality_text(const measure::ArmFacts& facts) {
  if (!facts.quality) return fmt::format("{:>10}{:>9}", "-", "-");
  return fmt::format("{:>10}{:>7.2f} %",
                     facts.quality->kld == 0 ? "0" : fmt::format("{:.3g}", facts.quality->kld),
                     100 * facts.quality->same_top);
}

std::string bits_text(const ContrastResult& c) {
  if (c.answers == 0) return "bits not compared: no greedy answer of both";
  if (c.equal_bits_wanted)
    return c.equal_answers == c.answers ? "bits equal"
                                        : fmt::format("BITS DIFFER in {} of {} greedy answers",
                                                      c.answers - c.equal_answers, c.answers);
  return fmt::format("numbers change by design: {} of {} greedy texts equal", c.equal_texts, c.answers);
}

std::string changes_text(const ContrastResult& c) {
  std::string out;
  for (const measure::ChangedSetting& change : c.comparison.changes)
    out += fmt::format("{}{} {} -> {}", out.empty() ? "" : ", ", change.name, change.a, change.b);
  return base::escape_for_log(out, 200);
}

std::vector<const ComparedMetric*> judged(const ContrastResult& c) {
  std::vector<const ComparedMetric*> out;
  for (const ComparedMetric& m : c.comparison.metrics)
    if (m.judged) out.push_back(&m);
  return out;
}

// A row of cells on a logarithmic axis around 1.
class Track {
 public:
  Track(double span, size_t cells) : span_(span), cells_(cells) {}

  size_t at(double ratio) const {
    const double share = (std::log(ratio) + span_) / (2 * span_);
    return static_cast<size_t>(
        std::clamp(std::lround(share * static_cast<double>(cells_ - 1)), 0L, static_cast<long>(cells_ - 1)));
  }

  std::string row(const ComparedMetric& m) const {
    std::vector<const char*> cells(cells_, " ");
    const double delta = measure::margin(m.kind);
    std::fill(cells.begin() + index(std::exp(-delta)), cells.begin() + index(std::exp(delta)) + 1, "░");
    cells[at(1)] = "│";
    if (m.low) {
      std::fill(cells.begin() + index(*m.low), cells.begin() + index(*m.high) + 1, "─");
      cells[at(*m.low)] = "├", cells[at(*m.high)] = "┤";
    }
    cells[at(m.ratio)] = "●";
    std::string out;
    for (const char* cell : cells) out += cell;
    return out;
  }

  std::string axis() const {
    std::string out(cells_, ' ');
    for (const double ratio : {std::exp(-span_), 1., std::exp(span_)}) {
      const std::string word = fmt::format("{:.2f}", ratio);
      const size_t from = std::min(at(ratio) - std::min(at(ratio), word.size() / 2), cells_ - word.size());
      out.replace(from, word.size(), word);
    }
    return out;
  }

 private:
  std::ptrdiff_t index(double ratio) const { return static_cast<std::ptrdiff_t>(at(ratio)); }

  double span_;
  size_t cells_;
};

}  // namespace

// What, the word, and what it rests on.
void AblatePage::print_heading() const {
  fmt::print("{}\n{}", base::escape_for_log(title), measure::verdict_word(ablation.verdict));
  const auto gravest =
      std::find_if(ablation.contrasts.begin(), ablation.contrasts.end(),
                   [&](const ContrastResult& c) { return c.comparison.verdict == ablation.verdict; });
  if (gravest != ablation.contrasts.end() && ablation.verdict != Verdict::kSame)
    fmt::print(": {} against {}", shown(name_of(gravest->arms.to)), shown(name_of(gravest->arms.from)));
  fmt::print("; Holm over {} verdicts\n\n", ablation.tests);
}

void AblatePage::print_arms() const {
  fmt::print("{:<{}}{:>9}{:>10}{:>9}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}\n", "arm", kNameShown + 2, "TTFT ms",
             "TPOT ms", "E2E s", "tok/s", "plan MiB", "peak MiB", "KV B/tok", "KLD", "same top");
  for (size_t arm = 0; arm < ablation.figures.size(); ++arm) {
    const measure::ArmFigures& f = ablation.figures[arm];
    const measure::ArmFacts& facts = ablation.facts[arm];
    fmt::print("{:<{}}{:>9}{:>10}{:>9}{:>9}{:>9}{:>9}{:>9}{}\n", shown(name_of(arm)), kNameShown + 2,
               figure(f, "ttft_s", 1e3), figure(f, "tpot_s", 1e3), figure(f, "e2e_s", 1),
               figure(f, "output_throughput", 1), mebibytes(facts.planned_bytes),
               figure(f, "peak_rss_anon_bytes", 0x1p-20),
               facts.kv_bytes_per_token ? fmt::format("{}", *facts.kv_bytes_per_token) : "-",
               quality_text(facts));
  }
  fmt::print("medians over rounds; KLD and same top: of the KV type against f32 KV, by eval kld\n\n");
}

void AblatePage::print_contrast(const ContrastResult& c) const {
  fmt::print("{} against {}: {}\n{}; {}\n", shown(name_of(c.arms.to)), shown(name_of(c.arms.from)),
             measure::verdict_word(c.comparison.verdict), changes_text(c), bits_text(c));
  for (const ComparedMetric* m : judged(c)) {
    const Unit unit = unit_of(*m);
    fmt::print("  {:<{}}{:>9}{:>9} {:<6}{:>8.3f}  {:<16}{:>8.4f}  {}\n", m->name, kMetricShown,
               three_digits(m->a * unit.scale), three_digits(m->b * unit.scale), unit.name, m->ratio,
               interval_text(*m), m->p_holm, verdict_text(*m));
  }
  size_t failed = 0;
  for (const measure::Gate& gate : c.comparison.gates) {
    if (gate.passed || ++failed > kGatesShown) continue;
    fmt::print("  INVALID: {}: {}; must be: {}\n", base::escape_for_log(gate.what),
               base::escape_for_log(gate.value), gate.limit);
  }
  if (failed > kGatesShown) fmt::print("  and {} more, all of them in run.json\n", failed - kGatesShown);
  fmt::print("\n");
}

void AblatePage::print_interactions() const {
  for (const measure::InteractionResult& i : ablation.interactions) {
    fmt::print("{} x {}: ratios against the base, and what both give beyond the product of each alone\n",
               shown(i.arms.first_name), shown(i.arms.second_name));
    fmt::print("  {:<{}}{:>9}{:>9}{:>9}{:>9}  {:<16}{:>8}\n", "", kMetricShown, "first", "second", "both",
               "beyond", "95 %", "p");
    for (const measure::InteractionMetric& m : i.metrics)
      fmt::print("  {:<{}}{:>9.3f}{:>9.3f}{:>9.3f}{:>9.3f}  {:<16}{:>8.4f}\n", m.name, kMetricShown, m.first,
                 m.second, m.both, m.ratio, m.low ? fmt::format("{:.3f} .. {:.3f}", *m.low, *m.high) : "-",
                 m.p);
    fmt::print("\n");
  }
}

void AblatePage::print_forest() const {
  double span = kSpanMin;
  for (const ContrastResult& c : ablation.contrasts)
    for (const ComparedMetric* m : judged(c))
      for (const double ratio : {m->ratio, m->low.value_or(1), m->high.value_or(1)})
        span = std::max(span, std::abs(std::log(ratio)));
  const size_t cells =
      std::clamp(terminal_size().columns, kWidth, kWidthMax) - kMetricShown - 2 - kAfterForest;
  const Track track(span, cells);
  fmt::print("better is right of 1; ░ the margin within which it is the SAME\n  {:<{}}{}\n", "", kMetricShown,
             track.axis());
  for (const ContrastResult& c : ablation.contrasts) {
    fmt::print("{} against {}\n", shown(name_of(c.arms.to)), shown(name_of(c.arms.from)));
    for (const ComparedMetric* m : judged(c))
      fmt::print("  {:<{}}{}{:>7.3f} {}\n", m->name, kMetricShown, track.row(*m), m->ratio,
                 measure::verdict_word(m->verdict));
  }
  fmt::print("\n");
}

void AblatePage::print() const {
  print_heading();
  print_arms();
  fmt::print("better is > 1{:<{}}{:>9}{:>9} {:<6}{:>8}  {:<16}{:>8}  {}\n", "", kMetricShown - 11, "from",
             "to", "", "ratio", "95 %", "p Holm", "verdict");
  for (const ContrastResult& c : ablation.contrasts) print_contrast(c);
  print_interactions();
  print_forest();
  for (const std::string& warning : ablation.warnings)
    fmt::print("warning: {}\n", base::escape_for_log(warning));
  if (noise == nullptr)
    fmt::print("this machine's noise is not known: tally compare DIR DIR, of runs of one arm, measures it\n");
}

}  // namespace tally::apps
