#include "measure/explain_steps.h"

#include "measure/quantile.h"
#include "measure/store.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace tally::measure {
namespace {

using nlohmann::json;

bool is_step(const json& s) {
  return s.is_object() && count_at(s, "step") > 0 && amount_at(s, "t_us") > 0 && s.contains("duration_us") &&
         s["duration_us"].is_number() && s.contains("phases_us") && s["phases_us"].is_object();
}

StepKind kind_of(const json& s) {
  return step_kind(count_at(s, "prefill_tokens") + count_at(s, "recompute_tokens") > 0,
                   count_at(s, "decode_tokens") > 0);
}

constexpr const char* kForwardPhases[] = {"linear", "attention", "head", "other"};
constexpr const char* kSchedulingPhases[] = {"plan", "pack", "commit"};

uint64_t rows_of(const json& s) {
  return count_at(s, "prefill_tokens") + count_at(s, "recompute_tokens") + count_at(s, "decode_tokens") +
         count_at(s, "draft_tokens");
}

StepTime time_of(const json& s, const RoofsInUse& roofs) {
  StepTime t;
  t.step = count_at(s, "step"), t.kind = kind_of(s);
  t.wall_s = amount_at(s, "duration_us") * 1e-6;
  const json& phases = s["phases_us"];
  for (const char* phase : kForwardPhases) t.forward_s += amount_at(phases, phase) * 1e-6;
  t.by_bound[Bound::kSampling] = amount_at(phases, "sample") * 1e-6;
  for (const char* phase : kSchedulingPhases)
    t.by_bound[Bound::kScheduling] += amount_at(phases, phase) * 1e-6;
  t.wall_s = std::max(t.wall_s, t.forward_s + t.by_bound.sum());
  if (roofs.bytes_per_s > 0) {
    const double bytes =
        amount_at(s, "weight_bytes") + amount_at(s, "kv_bytes") + amount_at(s, "activation_bytes");
    t.bandwidth_s = bytes / roofs.bytes_per_s;
    const double rate = roofs.ops_with_rows(rows_of(s));
    t.operations_s = rate > 0 ? amount_at(s, "flops") / rate : 0;
    const Bound side = t.bandwidth_s >= t.operations_s ? Bound::kBandwidth : Bound::kCompute;
    t.by_bound[side] = std::min(t.least_s(), t.forward_s);
    t.by_bound[Bound::kOverhead] = t.wall_s - t.by_bound.sum();
  } else {
    t.by_bound[Bound::kForward] = t.wall_s - t.by_bound.sum();
  }
  return t;
}

void add_step(StepGroup& g, const json& s, const StepTime& t) {
  ++g.steps;
  g.prefill_tokens += count_at(s, "prefill_tokens"), g.decode_tokens += count_at(s, "decode_tokens");
  g.draft_tokens += count_at(s, "draft_tokens"), g.accepted_tokens += count_at(s, "accepted_tokens");
  if (const auto drafts = s.find("drafts"); drafts != s.end() && drafts->is_object()) {
    for (const auto& [proposer, of] : drafts->items()) {
      if (count_at(of, "draft_tokens") == 0) continue;
      StepGroup::Drafts& sum = g.drafts[proposer];
      sum.draft_tokens += count_at(of, "draft_tokens"),
          sum.accepted_tokens += count_at(of, "accepted_tokens");
    }
  }
  g.recompute_tokens += count_at(s, "recompute_tokens"), g.sequences += count_at(s, "sequences");
  g.wall_s += t.wall_s, g.forward_s += t.forward_s;
  g.bandwidth_s += t.bandwidth_s, g.operations_s += t.operations_s, g.least_s += t.least_s();
  g.weight_bytes += amount_at(s, "weight_bytes"), g.kv_bytes += amount_at(s, "kv_bytes");
  g.activation_bytes += amount_at(s, "activation_bytes"), g.flops += amount_at(s, "flops");
  g.by_bound.add(t.by_bound);
  if (const double predicted_us = amount_at(s, "predicted_us"); predicted_us > 0)
    ++g.predicted_steps, g.predicted_s += predicted_us * 1e-6, g.predicted_wall_s += t.wall_s;
  for (const auto& [phase, us] : s["phases_us"].items())
    if (us.is_number()) g.phases_s[phase] += us.get<double>() * 1e-6;
}

// The time between steps, and what the log tells at the end of each.
class Between {
 public:
  Between(StepsAccount& out, const std::optional<Window>& window) : out_(out), window_(window) {}

  void step(const json& s, const StepTime& t) {
    const double begin_s = amount_at(s, "t_us") * 1e-6;
    if (last_ == 0 && window_) idle(begin_s - window_->from_s, true);
    if (last_ != 0 && t.step == last_ + 1) idle(begin_s - end_s_, is_without_work_);
    if (last_ != 0 && t.step > last_ + 1) out_.missing += t.step - last_ - 1;
    last_ = t.step, end_s_ = begin_s + t.wall_s;
    const uint64_t running = count_at(s, "running"), waiting = count_at(s, "waiting");
    is_without_work_ = running == 0 && waiting == 0;
    out_.steps_waiting += waiting > 0;
    out_.running_max = std::max({out_.running_max, running, count_at(s, "sequences")});
    const double held = amount_at(s, "kv_held"),
                 blocks = held + amount_at(s, "kv_free") + amount_at(s, "kv_cached");
    if (blocks > 0) out_.kv_held_max = std::max(out_.kv_held_max, held / blocks);
  }

  void end() {
    if (window_) idle(last_ == 0 ? window_->length_s() : window_->to_s - end_s_, true);
  }

 private:
  void idle(double gap_s, bool is_without_work) {
    if (gap_s > 0) out_.by_bound[is_without_work ? Bound::kIdle : Bound::kScheduling] += gap_s;
  }

  StepsAccount& out_;
  const std::optional<Window>& window_;
  uint64_t last_ = 0;
  double end_s_ = 0;
  bool is_without_work_ = false;
};

}  // namespace

double RoofsInUse::ops_with_rows(uint64_t rows) const {
  return kernels.empty() ? ops_per_s : rate_with_rows(kernels, static_cast<double>(rows));
}

void BoundTimes::add(const BoundTimes& other) {
  for (size_t i = 0; i < kBounds; ++i) seconds_[i] += other.seconds_[i];
}

double BoundTimes::sum() const {
  double out = 0;
  for (const double s : seconds_) out += s;
  return out;
}

Bound BoundTimes::largest() const {
  return static_cast<Bound>(std::max_element(seconds_.begin(), seconds_.end()) - seconds_.begin());
}

double StepGroup::phase_s(const char* name) const {
  const auto at = phases_s.find(name);
  return at == phases_s.end() ? 0 : at->second;
}

uint64_t StepsAccount::tokens() const {
  uint64_t out = 0;
  for (const StepGroup& g : groups) out += g.tokens();
  return out;
}

StepsAccount account_steps(std::span<const json> steps, const RoofsInUse& roofs,
                           const std::optional<Window>& window) {
  StepsAccount out;
  Between between(out, window);
  std::array<std::vector<double>, kStepKinds> walls;
  for (const json& s : steps) {
    if (!is_step(s)) continue;
    const StepTime t = time_of(s, roofs);
    const auto kind = static_cast<size_t>(t.kind);
    add_step(out.groups[kind], s, t);
    walls[kind].push_back(t.wall_s);
    if (t.kind == StepKind::kDecode) {
      BatchSpeed& batch = out.decode_batches[count_at(s, "decode_tokens")];
      ++batch.steps, batch.wall_s += t.wall_s;
    }
    (t.bandwidth_s >= t.operations_s ? out.bandwidth_overhead_s : out.compute_overhead_s) +=
        t.by_bound[Bound::kOverhead];
    out.by_bound.add(t.by_bound);
    between.step(s, t);
    out.steps.push_back(t);
  }
  between.end();
  for (size_t kind = 0; kind < kStepKinds; ++kind)
    if (!walls[kind].empty()) out.groups[kind].median_s = median_of(std::move(walls[kind]));
  out.wall_s = out.by_bound.sum();
  return out;
}

}  // namespace tally::measure
