// What an account says, in sentences.
#include "measure/explain.h"
#include "measure/shown.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace tally::measure {
namespace {

using nlohmann::json;

constexpr double kNearRoof = .7;  // of the forward time; below, neither roof explains it
constexpr uint64_t kEnough = 5;   // steps, to speak of their speed
constexpr double kKvShare = .1, kSamplingShare = .1, kSchedulingShare = .05, kIdleShare = .05,
                 kQueueShare = .1;
constexpr double kWorthwhile = 1.1;  // a ratio below is no reason to change anything

double percent(double share) { return 100 * share; }
double giga(double value) { return value * 1e-9; }

// Of rows: whole where they are.
std::string rows_text(double rows) {
  return fmt::format("{:.{}f}", rows, std::abs(rows - std::round(rows)) < .05 ? 0 : 1);
}
std::string milliseconds(double s) { return three_digits(s * 1e3) + " ms"; }

// "linear 71 %, attention 20 %": parts of the forward time, largest first.
std::string phases_text(const StepGroup& g) {
  std::vector<std::pair<double, const char*>> parts;
  for (const char* phase : {"linear", "attention", "head", "other"})
    parts.emplace_back(g.phase_s(phase), phase);
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::string out;
  for (const auto& [seconds, phase] : parts)
    if (seconds > .005 * g.forward_s)
      out += fmt::format("{}{} {:.0f} %", out.empty() ? "" : ", ", phase, percent(seconds / g.forward_s));
  return out;
}

// Operations a second that bound these steps: of a mean where the kernels' rate depends on the rows.
double operations_roof(const StepGroup& g, const RoofsInUse& roofs) {
  return g.operations_s > 0 ? g.flops / g.operations_s : roofs.ops_per_s;
}

json group_evidence(const StepGroup& g, const RoofsInUse& roofs) {
  return {{"steps", g.steps},
          {"bytes_per_s", g.forward_s > 0 ? g.bytes() / g.forward_s : 0},
          {"roof_bytes_per_s", roofs.bytes_per_s},
          {"ops_per_s", g.forward_s > 0 ? g.flops / g.forward_s : 0},
          {"roof_ops_per_s", operations_roof(g, roofs)},
          {"instruction_ops_per_s", roofs.ops_per_s},
          {"efficiency", g.efficiency()}};
}

class Writer {
 public:
  explicit Writer(const Explanation& e) : e_(e) {}

  std::vector<Sentence> write() {
    if (e_.steps.wall_s > 0) {
      for (const StepKind kind : {StepKind::kDecode, StepKind::kPrefill, StepKind::kMixed}) say_bound(kind);
      for (const StepKind kind : {StepKind::kDecode, StepKind::kPrefill, StepKind::kMixed})
        say_predicted(kind);
      say_batch();
      say_threads();
      say_kv();
      say_shares();
      say_mixed();
      say_drafts();
      say_queue();
    }
    say_cap();
    return std::move(out_);
  }

 private:
  const StepGroup& decode() const { return e_.steps.of(StepKind::kDecode); }
  double share(Bound bound) const { return e_.steps.by_bound[bound] / e_.steps.wall_s; }

  void say(std::string text, json evidence) {
    out_.push_back({std::move(text), false, "", std::move(evidence)});
  }
  void predict(std::string text, std::string flag, json evidence) {
    out_.push_back({std::move(text), true, std::move(flag), std::move(evidence)});
  }

  // Where layers are read in every pass, and that is what these steps took. False: it is not.
  bool say_disk(const StepGroup& g, const std::string& who) {
    const StreamedWeights& w = e_.server.streamed;
    if (w.pass_bytes == 0 || w.bytes_per_s <= 0) return false;
    const auto steps = static_cast<double>(g.steps);
    const double allowed = w.bytes_per_s / static_cast<double>(w.pass_bytes), made = steps / g.forward_s;
    if (made < kNearRoof * allowed) return false;
    const double tokens = static_cast<double>(g.tokens()) / steps;
    say(fmt::format(
            "{} is bound by the disk: each pass reads {} layers, {} MB, which {} GB/s bring to {} tokens "
            "a second; measured {} ({:.0f} %)",
            who, w.layers, three_digits(static_cast<double>(w.pass_bytes) * 1e-6),
            three_digits(giga(w.bytes_per_s)), three_digits(tokens * allowed), three_digits(tokens * made),
            percent(made / allowed)),
        {{"steps", g.steps},
         {"layers", w.layers},
         {"pass_bytes", w.pass_bytes},
         {"disk_bytes_per_s", w.bytes_per_s},
         {"predicted_tokens_per_s", tokens * allowed},
         {"measured_tokens_per_s", tokens * made}});
    return true;
  }

  void say_bound(StepKind kind) {
    const StepGroup& g = e_.steps.of(kind);
    if (g.steps < kEnough || g.forward_s <= 0) return;
    const std::string name(kStepKindNames[static_cast<size_t>(kind)]);
    const std::string who = kind == StepKind::kMixed ? "prefill beside decode" : name;
    if (say_disk(g, who)) return;
    if (e_.in_use.bytes_per_s <= 0) {
      say(fmt::format(
              "{}: {} steps, {} GB/s and {} Gop/s of the pass; what bounds it cannot be said without roofs",
              who, g.steps, three_digits(giga(g.bytes() / g.forward_s)),
              three_digits(giga(g.flops / g.forward_s))),
          group_evidence(g, e_.in_use));
      return;
    }
    const bool reads = g.is_bandwidth_bound();
    const double rate = (reads ? g.bytes() : g.flops) / g.forward_s;
    const double roof = reads ? e_.in_use.bytes_per_s : operations_roof(g, e_.in_use);
    const char* unit = reads ? "GB/s" : "Gop/s";
    if (g.efficiency() >= kNearRoof) {
      const char* more =
          !reads && !e_.in_use.kernels.empty() ? " of its kernels with as many rows, in the caches"
          : reads && rate > 1.05 * roof        ? "; more than memory gives: part of it came from the caches"
                                               : "";
      say(fmt::format("{} is {} bound: {} of {} {} ({:.0f} %){}", who, reads ? "bandwidth" : "compute",
                      three_digits(giga(rate)), three_digits(giga(roof)), unit, percent(rate / roof), more),
          group_evidence(g, e_.in_use));
      return;
    }
    json evidence = group_evidence(g, e_.in_use);
    std::string kernels;
    if (const double tuned = tuned_ops(g); !reads && tuned > 0) {
      evidence["tuned_ops_per_s"] = tuned;
      kernels = fmt::format("; start-up tuning saw its kernels at about {} Gop/s, here they did {}",
                            three_digits(giga(tuned)), three_digits(giga(g.flops / g.forward_s)));
    }
    say(fmt::format(
            "{} is at neither roof: {:.0f} % of the forward time lost; memory asks for {:.0f} % of it "
            "({} of {} GB/s), operations for {:.0f} %; it went to {}{}",
            who, percent(1 - g.efficiency()), percent(g.bandwidth_s / g.forward_s),
            three_digits(giga(g.bytes() / g.forward_s)), three_digits(giga(e_.in_use.bytes_per_s)),
            percent(g.operations_s / g.forward_s), phases_text(g), kernels),
        std::move(evidence));
  }

  // How far the server's own model of its steps was off.
  void say_predicted(StepKind kind) {
    const StepGroup& g = e_.steps.of(kind);
    if (g.predicted_steps < kEnough) return;
    const auto n = static_cast<double>(g.predicted_steps);
    const double ratio = g.predicted_wall_s / g.predicted_s;
    say(fmt::format("{} steps were expected to take {} in the mean, and took {}: {:.2f} x",
                    kStepKindNames[static_cast<size_t>(kind)], milliseconds(g.predicted_s / n),
                    milliseconds(g.predicted_wall_s / n), ratio),
        {{"steps", g.predicted_steps},
         {"predicted_s", g.predicted_s},
         {"wall_s", g.predicted_wall_s},
         {"ratio", ratio}});
  }

  // Operations a second with which many rows went through the weights when they were tuned, if one row went
  // at the roof of memory; 0: not known.
  double tuned_ops(const StepGroup& g) const {
    constexpr size_t kMany = 16;
    const std::vector<double>& cost = e_.server.row_cost;
    if (cost.size() < kMany || g.tokens() == 0) return 0;
    const double row = g.flops / static_cast<double>(g.tokens());
    const double pass_s = g.weight_bytes / static_cast<double>(g.steps) / e_.in_use.bytes_per_s * cost.back();
    return pass_s > 0 ? row * static_cast<double>(cost.size()) / pass_s : 0;
  }

  // What a pass over the weights takes with so many rows, over that of one.
  double row_cost(double rows) const {
    const std::vector<double>& cost = e_.server.row_cost;
    if (cost.size() < 2) {  // by the roofs
      const StepGroup& g = decode();
      const double row_s = g.operations_s / std::max(1., static_cast<double>(g.decode_tokens + g.draft_tokens));
      const double weights_s = g.weight_bytes / static_cast<double>(g.steps) / e_.in_use.bytes_per_s;
      return std::max(weights_s, rows * row_s) / std::max(weights_s, row_s);
    }
    const double at = std::max(0., rows - 1);
    const auto below = std::min(static_cast<size_t>(at), cost.size() - 2);  // beyond the end as at the end
    return cost[below] + (at - static_cast<double>(below)) * (cost[below + 1] - cost[below]);
  }

  // Tokens a second with `to` rows a step over those with `from`.
  double batch_ratio(double from, double to) const {
    const StepGroup& g = decode();
    const double weights = g.phase_s("linear") + g.phase_s("head");
    const double per_row = g.phase_s("attention") + g.phase_s("other") + g.phase_s("sample");
    const double fixed = std::max(0., g.wall_s - weights - per_row);
    const double later = weights * row_cost(to) / row_cost(from) + per_row * to / from + fixed;
    return to / from * g.wall_s / later;
  }

  void say_batch() {
    const StepGroup& g = decode();
    if (g.steps < kEnough || e_.in_use.bytes_per_s <= 0) return;
    if (g.draft_tokens > 0) return;  // they fade out as the batch grows: its rows say nothing of a larger one
    const double rows = static_cast<double>(g.decode_tokens) / static_cast<double>(g.steps);
    const double most = e_.server.number("max-seqs") > 0 ? e_.server.number("max-seqs") : 64;
    const double to = std::min(std::round(4 * rows), most);
    if (to <= rows) return;
    const double ratio = batch_ratio(rows, to);
    json evidence = {{"rows", rows},
                     {"to_rows", to},
                     {"ratio", ratio},
                     {"by", e_.server.row_cost.size() < 2 ? "roofs" : "row_cost"}};
    const auto [was, then] = std::pair(speed_of(std::llround(rows)), speed_of(std::llround(to)));
    std::string seen;
    if (was > 0 && then > 0) {
      evidence["measured_ratio"] = then / was;
      seen = fmt::format("; here steps of {} rows gave {} x those of {}", to, three_digits(then / was),
                         std::llround(rows));
    }
    if (ratio < kWorthwhile)
      return predict(
          fmt::format("a larger batch would give little: {} -> {} rows a decode step {} x tokens a second{}",
                      rows_text(rows), rows_text(to), three_digits(ratio), seen),
          "", std::move(evidence));
    predict(fmt::format("batch {} -> {} would give about {} x tokens a second{}", rows_text(rows),
                        rows_text(to), three_digits(ratio), seen),
            e_.steps.steps_waiting > 0 && rows >= .9 * most
                ? "--max-seqs"
                : "more requests at once (bench load --concurrency)",
            std::move(evidence));
  }

  // Tokens a second of decode steps with so many rows; 0: too few were seen.
  double speed_of(long long rows) const {
    const auto at = e_.steps.decode_batches.find(static_cast<uint64_t>(rows));
    if (at == e_.steps.decode_batches.end() || at->second.steps < kEnough) return 0;
    return static_cast<double>(rows) * static_cast<double>(at->second.steps) / at->second.wall_s;
  }

  void say_threads() {
    const uint32_t most = e_.roofs.threads_max(), now = e_.server.threads;
    const StepGroup& g = decode();
    if (most == 0 || g.steps < kEnough || !g.is_bandwidth_bound() || g.efficiency() < kNearRoof) return;
    const double read_now = e_.roofs.read_at(now), best = e_.roofs.read_at(most);
    const json evidence = {
        {"threads", now}, {"bytes_per_s", read_now}, {"best_bytes_per_s", best}, {"threads_max", most}};
    if (now >= most)
      return say(fmt::format("more threads will not help: {} are all that this machine's cores carry", now),
                 evidence);
    if (best < kWorthwhile * read_now)
      return say(fmt::format("more threads will not help: {} read {} GB/s, {} read {}", now,
                             three_digits(giga(read_now)), most, three_digits(giga(best))),
                 evidence);
    predict(
        fmt::format("{} threads instead of {} would give decode about {} x: they read {} instead of {} GB/s",
                    most, now, three_digits(best / read_now), three_digits(giga(best)),
                    three_digits(giga(read_now))),
        fmt::format("--threads {}", most), evidence);
  }

  void say_kv() {
    const StepGroup& g = decode();
    if (g.steps < kEnough || g.bytes() <= 0) return;
    const double kv = g.kv_bytes / g.bytes();
    if (kv < kKvShare) return;
    struct Smaller {
      const char *type, *to;
      double times;  // fewer bytes, heads of 128
    };
    constexpr Smaller kSmaller[] = {{"f32", "int8", 3.9}, {"bf16", "int8", 1.94}, {"int8", "k8v4", 1.25}};
    for (const Smaller& s : kSmaller) {
      if (e_.server.kv_type != s.type) continue;
      const double saved = g.phase_s("attention") * (1 - 1 / s.times);
      const double ratio = g.wall_s / std::max(g.wall_s - saved, .01 * g.wall_s);
      const json evidence = {{"kv_share", kv}, {"kv_type", s.type}, {"to_kv_type", s.to}, {"ratio", ratio}};
      if (ratio < kWorthwhile)
        return predict(fmt::format("the KV cache is {:.0f} % of what a decode step reads; {} instead of {} "
                                   "would give decode little: {} x",
                                   percent(kv), s.to, s.type, three_digits(ratio)),
                       "", evidence);
      return predict(
          fmt::format("the KV cache is {:.0f} % of what a decode step reads; {} instead of {} would give "
                      "decode about {} x, and {} x the tokens in the pool; what it costs in quality "
                      "tells tally eval kv",
                      percent(kv), s.to, s.type, three_digits(ratio), three_digits(s.times)),
          fmt::format("--kv-type {}", s.to), evidence);
    }
    say(fmt::format("the KV cache is {:.0f} % of what a decode step reads", percent(kv)), {{"kv_share", kv}});
  }

  void say_shares() {
    if (const double s = share(Bound::kSampling); s >= kSamplingShare)
      predict(fmt::format(
                  "sampling takes {:.0f} % of the time: greedy requests, or none with penalties, logprobs "
                  "and large top_k, would take less",
                  percent(s)),
              "temperature 0", {{"share", s}});
    if (const double s = share(Bound::kScheduling); s >= kSchedulingShare)
      say(fmt::format("planning, packing and handing out tokens take {:.0f} % of the time: small steps of a "
                      "small model",
                      percent(s)),
          {{"share", s}});
    if (const double s = share(Bound::kIdle); s >= kIdleShare)
      say(fmt::format("the engine had no work {:.0f} % of the time: more load would fit", percent(s)),
          {{"share", s}});
  }

  void say_mixed() {
    const StepGroup &alone = decode(), &mixed = e_.steps.of(StepKind::kMixed);
    if (alone.steps < kEnough || mixed.steps < kEnough || mixed.median_s < 2 * alone.median_s) return;
    const double ratio = mixed.median_s / alone.median_s;
    const json evidence = {
        {"decode_median_s", alone.median_s}, {"mixed_median_s", mixed.median_s}, {"ratio", ratio}};
    std::string text = fmt::format(
        "a decode step takes {} at the median, one with prompts in it {}: who gets tokens "
        "waits {} x as long while others are prefilled",
        milliseconds(alone.median_s), milliseconds(mixed.median_s), three_digits(ratio));
    if (e_.server.number("step-latency") > 0) return say(text + ", within --step-latency", evidence);
    predict(text, fmt::format("--step-latency {:.0f}", std::ceil(3e3 * alone.median_s)), evidence);
  }

  // Whether there are drafts, and why or why not.
  void say_drafts() {
    const StepGroup& g = decode();
    const auto setting = e_.server.settings.find("speculate");
    if (g.steps < kEnough || setting == e_.server.settings.end()) return;
    if (e_.server.row_cost.size() < 2 && e_.in_use.bytes_per_s <= 0) return;  // nobody knows what rows cost
    const double rows = static_cast<double>(g.decode_tokens + g.draft_tokens) / static_cast<double>(g.steps);
    const double second = row_cost(rows + 1) / row_cost(rows);
    const auto drafted = static_cast<double>(g.draft_tokens), right = static_cast<double>(g.accepted_tokens);
    const double gain = 1 + right / static_cast<double>(std::max<uint64_t>(1, g.decode_tokens));
    const json evidence = {{"speculate", setting->second}, {"draft_tokens", g.draft_tokens},
                           {"accepted_tokens", g.accepted_tokens}, {"tokens_per_decode_row", gain},
                           {"rows", rows},                {"next_row_cost", second}};
    const std::string price = fmt::format("a row more in steps of {} costs {} x", rows_text(rows),
                                          three_digits(second));
    if (setting->second == "off")
      return predict(fmt::format("nothing is drafted, for speculation is off: {}, which pays where answers "
                                 "quote their prompts and more than {:.0f} % of the drafts are right",
                                 price, percent(std::max(0., second - 1))),
                     "--speculate lookup", evidence);
    if (g.draft_tokens == 0)
      return say(fmt::format("speculation is on and drafted nothing: nothing was there to copy, or it did "
                             "not pay; {}",
                             price),
                 evidence);
    std::string by;
    for (const auto& [proposer, of] : g.drafts)
      by +=
          fmt::format("{}{:.0f} % of {} by {}", by.empty() ? " (" : ", ",
                      percent(static_cast<double>(of.accepted_tokens) / static_cast<double>(of.draft_tokens)),
                      of.draft_tokens, proposer);
    if (!by.empty()) by += ")";
    say(fmt::format(
            "speculation is on: {:.0f} % of {} drafted tokens were right{}, {} tokens for each decode "
            "row; {}",
            percent(right / drafted), g.draft_tokens, by, three_digits(gain), price),
        evidence);
  }

  void say_queue() {
    const StepsAccount& s = e_.steps;
    if (s.steps.empty()) return;
    const double waiting = static_cast<double>(s.steps_waiting) / static_cast<double>(s.steps.size());
    if (waiting < kQueueShare) return;
    const uint32_t most = e_.server.number("max-seqs");
    const json evidence = {
        {"share_of_steps", waiting}, {"running_max", s.running_max}, {"kv_held_max", s.kv_held_max}};
    if (most > 0 && s.running_max >= most)
      return predict(fmt::format("requests waited at {:.0f} % of the steps while {} ran, all that may",
                                 percent(waiting), most),
                     "--max-seqs", evidence);
    if (s.kv_held_max > .9)
      return predict(
          fmt::format(
              "requests waited at {:.0f} % of the steps while up to {:.0f} % of the KV blocks were held",
              percent(waiting), percent(s.kv_held_max)),
          "--memory, --kv-pool, or a smaller --kv-type", evidence);
    say(fmt::format("requests waited at {:.0f} % of the steps for rows in a step", percent(waiting)),
        evidence);
  }

  void say_cap() {
    const CapAccount& c = e_.cap;
    if (!c.preemptions && !c.refused) return;
    json evidence = {{"preemptions", c.preemptions.value_or(0)},
                     {"recomputed_tokens", c.recomputed_tokens.value_or(0)},
                     {"kv_held_max", e_.steps.kv_held_max}};
    evidence["refused"] = c.refused ? json(*c.refused) : json(nullptr);
    const double preempted = c.preemptions.value_or(0), refused = c.refused.value_or(0);
    if (preempted == 0 && refused == 0) {
      if (e_.steps.steps.empty()) return;
      return say(
          fmt::format(
              "the memory cap cost nothing: no preemption{}, at most {:.0f} % of the KV blocks were held",
              c.refused ? ", no refusal" : "", percent(e_.steps.kv_held_max)),
          std::move(evidence));
    }
    const double rows = static_cast<double>(e_.steps.tokens());
    const double again = rows > 0 ? std::min(1., c.recomputed_tokens.value_or(0) / rows) : 0;
    say(fmt::format("the memory cap cost {:.0f} preemptions, {:.0f} tokens computed again ({:.1f} % of all "
                    "rows), {:.0f} "
                    "requests refused",
                    preempted, c.recomputed_tokens.value_or(0), percent(again), refused),
        std::move(evidence));
    out_.back().flag = "--memory, --kv-pool, or a smaller --kv-type";
  }

  const Explanation& e_;
  std::vector<Sentence> out_;
};

}  // namespace

std::vector<Sentence> sentences_of(const Explanation& explanation) { return Writer(explanation).write(); }

}  // namespace tally::measure
