#include "explain_page.h"

#include "base/utf8.h"
#include "measure/shown.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace tally::apps {
namespace {

using measure::Bound;
using measure::Explanation;
using measure::StageTimes;
using measure::StepGroup;
using measure::three_digits;
using measure::WaitedRequest;

// A column of a waterfall for each stage, in their order.
constexpr std::string_view kStageLetters = "qtP.Dsdxc";
static_assert(kStageLetters.size() == measure::kStages);
constexpr size_t kQueueStage = 0, kPrefillStage = 2;
static_assert(measure::kStageNames[kQueueStage] == "queue" &&
              measure::kStageNames[kPrefillStage] == "prefill");

std::string shown(const std::string& text, size_t most = 60) { return base::escape_for_log(text, most); }
double percent(double part, double whole) { return whole > 0 ? 100 * part / whole : 0; }

class Page {
 public:
  Page(const Explanation& e, size_t width) : e_(e), width_(std::clamp<size_t>(width, 60, 140)) {}

  std::string write() {
    heading();
    if (e_.steps.wall_s > 0) shares(), kinds();
    sentences();
    if (e_.requests) requests(*e_.requests);
    for (const std::string& doubt : e_.doubts) paragraph("note: ", doubt);
    return std::move(out_);
  }

 private:
  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  // `text` with `first` before it, broken at blanks, further lines indented as far.
  void paragraph(const std::string& first, const std::string& text) {
    std::string line = first;
    size_t filled = first.size();
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find(' ', at), text.size());
      const std::string word = text.substr(at, end - at);
      if (filled + word.size() > width_ && filled > first.size()) {
        while (line.back() == ' ') line.pop_back();
        out_ += line + '\n';
        line = std::string(first.size(), ' ');
        filled = first.size();
      }
      line += word + ' ', filled += word.size() + 1;
      at = end + 1;
    }
    while (!line.empty() && line.back() == ' ') line.pop_back();
    out_ += line + '\n';
  }

  void heading() {
    print("{}\n{}", shown(e_.subject, 200),
          e_.server.model.empty() ? "model unknown" : shown(e_.server.model));
    if (e_.server.threads > 0) print(", {} thread{}", e_.server.threads, e_.server.threads == 1 ? "" : "s");
    if (!e_.server.kv_type.empty()) print(", KV {}", shown(e_.server.kv_type));
    if (!e_.roofs.empty())
      print("; roofs ({}): read {} GB/s, {} Gop/s", e_.roofs_source,
            three_digits(e_.in_use.bytes_per_s * 1e-9), three_digits(e_.in_use.ops_per_s * 1e-9));
    print("\n");
    if (!e_.in_use.kernels.empty()) kernels();
    print("\n");
  }

  void kernels() {
    std::string text = "its kernels, in the caches:";
    for (const auto& [rows, rate] : e_.in_use.kernels)
      text += fmt::format("{} {} row{} {}", text.ends_with(':') ? "" : ",", rows, rows == 1 ? "" : "s",
                          three_digits(rate * 1e-9));
    paragraph(shown(e_.server.weight_type) + ": ", text + " Gop/s");
  }

  void shares() {
    print("{} s, {} steps; where it went:\n", three_digits(e_.steps.wall_s), e_.steps.steps.size());
    constexpr double kBar = 40;
    for (size_t i = 0; i < measure::kBounds; ++i) {
      const double part = percent(e_.steps.by_bound[static_cast<Bound>(i)], e_.steps.wall_s);
      if (part <= 0) continue;
      print("  {:<11}{:>6.1f} %  {}\n", measure::kBoundNames[i], part,
            std::string(static_cast<size_t>(std::lround(part / 100 * kBar)), '#'));
    }
    print("\n");
  }

  void kinds() {
    print("{:<9}{:>7}{:>8}{:>11}{:>10}{:>8}{:>8}{:>8}  {}\n", "steps", "number", "wall %", "median ms",
          "tokens/s", "GB/s", "Gop/s", "roof %", "bound by");
    for (size_t i = 0; i < measure::kStepKinds; ++i) {
      const StepGroup& g = e_.steps.groups[i];
      if (g.steps == 0) continue;
      const double forward_s = std::max(g.forward_s, 1e-9);
      print("{:<9}{:>7}{:>8.1f}{:>11}{:>10}{:>8}{:>8}", measure::kStepKindNames[i], g.steps,
            percent(g.wall_s, e_.steps.wall_s), three_digits(g.median_s * 1e3),
            three_digits(static_cast<double>(g.tokens()) / std::max(g.wall_s, 1e-9)),
            three_digits(g.bytes() / forward_s * 1e-9), three_digits(g.flops / forward_s * 1e-9));
      if (e_.roofs.empty())
        print("{:>8}  unknown\n", "-");
      else
        print("{:>8.0f}  {}\n", 100 * g.efficiency(), g.is_bandwidth_bound() ? "bandwidth" : "compute");
    }
    print("\n");
  }

  void sentences() {
    for (const measure::Sentence& s : e_.sentences) {
      std::string text = s.text;
      if (s.is_predicted) text += " [predicted]";
      if (!s.flag.empty()) text += "; try: " + s.flag;
      paragraph("- ", text);
    }
    if (!e_.sentences.empty()) print("\n");
  }

  void requests(const measure::RequestsAccount& r) {
    if (r.with_receipt > 0) {
      print("share of E2E by stage, %\n{:<11}{:>6}", "class", "n");
      for (size_t i = 0; i < measure::kStages; ++i)
        if (is_shown(r.all, i)) print("{:>11}", measure::kStageNames[i]);
      print("\n");
      for (const auto& [name, shares] : r.by_class)
        stage_row(name.empty() ? "-" : shown(name, 10), shares, r.all);
      if (r.by_class.size() > 1) stage_row("all", r.all, r.all);
      print("\n");
    }
    waits("longest waits for a first token", r.worst_ttft, true);
    waits("longest gaps between tokens", r.worst_gap, false);
    if (!r.slowest.empty() && r.with_receipt > 0) waterfalls(r.slowest);
  }

  // Stages that are nothing in all of them have no column.
  static bool is_shown(const measure::StageShares& all, size_t stage) {
    return percent(all.seconds[stage], all.e2e_s) >= .05;
  }

  void stage_row(const std::string& name, const measure::StageShares& s, const measure::StageShares& all) {
    print("{:<11}{:>6}", name, s.requests);
    for (size_t i = 0; i < measure::kStages; ++i)
      if (is_shown(all, i)) print("{:>11.1f}", percent(s.seconds[i], s.e2e_s));
    print("\n");
  }

  static std::string who(const WaitedRequest& w) {
    return fmt::format("request {}{}", w.id, w.class_name.empty() ? "" : ", " + shown(w.class_name, 20));
  }

  void waits(const char* what, const std::vector<WaitedRequest>& list, bool for_first_token) {
    if (list.empty()) return;
    print("{}\n", what);
    for (const WaitedRequest& w : list) {
      std::string text = fmt::format("{}, {} prompt tokens, at {} s: {} ms", who(w), w.prompt_tokens,
                                     three_digits(w.wait_begin_s), three_digits(w.wait_s * 1e3));
      if (for_first_token && w.stages[kPrefillStage] > 0)
        text += fmt::format("; in the queue {} ms, its own prompt {} ms",
                            three_digits(w.stages[kQueueStage] * 1e3),
                            three_digits(w.stages[kPrefillStage] * 1e3));
      if (w.engine)
        text += fmt::format("; the engine ran {} step{} with {} prompt tokens, {} ms", w.engine->steps,
                            w.engine->steps == 1 ? "" : "s", w.engine->prefill_tokens,
                            three_digits(w.engine->wall_s * 1e3));
      if (w.preemptions > 0)
        text += fmt::format("; it was preempted {} time{}", w.preemptions, w.preemptions == 1 ? "" : "s");
      if (w.culprits.empty()) {
        text += "; no other prompt was computed meanwhile";
      } else {
        text +=
            fmt::format("; meanwhile prompts of {} other{}:", w.culprits_all, w.culprits_all == 1 ? "" : "s");
        for (size_t i = 0; i < w.culprits.size(); ++i) {
          const measure::Culprit& c = w.culprits[i];
          text += fmt::format("{} request {} ({}{} tokens, {} ms of it)", i == 0 ? "" : ",", c.id,
                              c.class_name.empty() ? "" : shown(c.class_name, 20) + ", ", c.prompt_tokens,
                              three_digits(c.overlap_s * 1e3));
        }
      }
      paragraph("  ", text);
    }
    print("\n");
  }

  // Stages are sums over the request's life, drawn in the order in which they begin.
  void waterfalls(const std::vector<WaitedRequest>& list) {
    paragraph(
        "slowest requests: ",
        "q queue, t tokenize, P prefill, . stalled, D decode, s sample, d detokenize, x send, c client");
    const size_t columns = width_ - 40;
    for (const WaitedRequest& w : list) {
      std::string bar;
      double until = 0, sum = 0;
      for (const double seconds : w.stages) sum += seconds;
      for (size_t i = 0; i < measure::kStages && sum > 0; ++i) {
        until += w.stages[i];
        const auto end = static_cast<size_t>(std::lround(until / sum * static_cast<double>(columns)));
        if (end > bar.size()) bar.append(end - bar.size(), kStageLetters[i]);
      }
      print("  {:<22}{:>8} ms  |{}|\n", who(w).substr(0, 22), three_digits(w.e2e_s * 1e3), bar);
    }
    print("\n");
  }

  const Explanation& e_;
  const size_t width_;
  std::string out_;
};

}  // namespace

std::string explain_page(const Explanation& explanation, size_t width) {
  return Page(explanation, width).write();
}

}  // namespace tally::apps
