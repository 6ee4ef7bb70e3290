#include "eval_page.h"

#include "base/utf8.h"
#include "cli.h"
#include "measure/quantile.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

namespace tally::apps {
namespace {

using measure::CodecFigures;
using measure::Estimate;
using measure::EvalKind;
using measure::EvalReport;
using nlohmann::json;

std::string with_interval(const Estimate& e, int digits) {
  return fmt::format("{:.{}f} ({:.{}f}..{:.{}f})", e.value, digits, e.interval.low, digits, e.interval.high,
                     digits);
}

std::string small(double value) { return value == 0 ? "0" : fmt::format("{:.3g}", value); }

std::string percent(double share) { return fmt::format("{:.2f} %", 100 * share); }

double share_of(uint64_t part, uint64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

void print_ppl(const EvalReport& report) {
  fmt::print("{:<7}{:>9}  {:<28}{:<26}\n", "kv", "B/token", "perplexity", "nats/token");
  for (const CodecFigures& c : report.codecs)
    fmt::print("{:<7}{:>9}  {:<28}{:<26}\n", c.kv_type, c.bytes_per_token, with_interval(c.text.ppl, 3),
               with_interval(c.text.nll, 4));
}

void print_text(const EvalReport& report) {
  fmt::print("{:<7}{:>9}  {:<31}{:>9}{:>9}  {:<27}{:>9}{:>9}\n", "kv", "B/token", "KLD mean", "P99", "max",
             "ppl / that of f32", "same top", "dp RMS");
  for (const CodecFigures& c : report.codecs) {
    const measure::TextFigures& f = c.text;
    fmt::print("{:<7}{:>9}  {:<31}{:>9}{:>9}  {:<27}{:>9}{:>9}\n", c.kv_type, c.bytes_per_token,
               with_interval(f.kld, 6), small(f.kld_p99), small(f.kld_max), with_interval(f.ppl_ratio, 4),
               percent(f.same_top.value), percent(f.probability_rms));
  }
}

// What each layer loses, in one line a codec, and the layers that lose far more than the others.
void print_layers(const EvalReport& report) {
  fmt::print("\n{:<7}{:>12}{:>12}  {}\n", "kv", "layer mean", "layer max", "layers that stand out");
  for (const CodecFigures& c : report.codecs) {
    if (c.layer_damage.empty()) continue;
    std::string out;
    for (const size_t layer : measure::damaged_layers(c.layer_damage))
      out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", layer, small(c.layer_damage[layer]));
    const double sum = std::accumulate(c.layer_damage.begin(), c.layer_damage.end(), 0.0);
    fmt::print("{:<7}{:>12}{:>12}  {}\n", c.kv_type, small(sum / static_cast<double>(c.layer_damage.size())),
               small(*std::max_element(c.layer_damage.begin(), c.layer_damage.end())),
               out.empty() ? "-" : out);
  }
  fmt::print(
      "relative squared error of a layer's attention; those with more than {:g} times the mean of the others "
      "stand out\n",
      measure::kDamageTimes);
}

void print_generated(const EvalReport& report) {
  fmt::print("\n{:<7}{:<25}", "kv", "first other token");
  for (const measure::ProbeFigures& p : report.codecs.front().probes) fmt::print("{:<22}", p.name);
  fmt::print("{}\n", "decode");
  for (const CodecFigures& c : report.codecs) {
    const measure::DivergenceFigures& d = c.divergence;
    fmt::print("{:<7}{:<25}", c.kv_type,
               d.first.empty() ? "-" : fmt::format("{:g} ({:.0f} % never)", d.median, 100 * d.never_share));
    for (const measure::ProbeFigures& p : c.probes)
      fmt::print("{:<22}", fmt::format("{}/{} same {} p={:.2f}", p.right, p.items, p.same, p.p));
    if (!c.decode_rates.empty())
      fmt::print("{:.1f} tokens/s at {}", measure::median_of(c.decode_rates), c.decode_depth);
    fmt::print("\n");
  }
  fmt::print(
      "first other token: median of {} greedy texts of {} tokens against f32's; right answers of questions, "
      "answers the\nsame as f32's, p of McNemar's test\n",
      report.options.prompts, report.options.new_tokens);
}

}  // namespace

void EvalPage::print_json() const {
  json out = {{"saved", saved}};
  for (const char* key : {"status", "valid", "invalid_reasons", "warnings", "machine", "model", "workload",
                          "client_settings", "results"})
    out[key] = run.head.at(key);
  write_json(out);
}

void EvalPage::print_table() const {
  const CodecFigures& first = report.codecs.front();
  fmt::print("{}, {}, {}: {} of its {} tokens in windows of {}, {} positions scored, {:.0f} s\n",
             base::escape_for_log(run.head.at("model").at("path_basename").get<std::string>()), mode,
             base::escape_for_log(report.text_name),
             report.options.tokens == 0 ? report.text_tokens
                                        : std::min<size_t>(report.text_tokens, report.options.tokens),
             report.text_tokens, report.options.context, first.text.positions, report.seconds);
  if (first.text.positions > 0) {
    fmt::print("attention read stored blocks alone, {} of it of earlier passes, {:.1f} MiB of {}",
               percent(share_of(first.reads.earlier_positions, first.reads.positions)),
               static_cast<double>(first.reads.bytes) / 0x1p20, first.kv_type);
    if (report.has_reference())
      fmt::print("; noise of 2 bits in its values gives KLD {}", small(report.self_test.noise_kld.value));
    fmt::print("\n{}\n\n", report.invalid_reasons.empty() ? "VALID" : "INVALID");
    report.has_reference() ? print_text(report) : print_ppl(report);
    fmt::print("95 % intervals: bootstrap over blocks of {} tokens\n", measure::kEvalBlock);
  }
  if (!report.codecs.back().layer_damage.empty()) print_layers(report);
  if (report.options.kind == EvalKind::kKv && !first.probes.empty()) print_generated(report);
  for (const std::string& warning : report.warnings) fmt::print("warning: {}\n", warning);
  fmt::print("saved: {}\n", base::escape_for_log(saved));
}

}  // namespace tally::apps
