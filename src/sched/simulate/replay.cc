#include "sched/simulate/replay.h"

#include "base/check.h"

#include <algorithm>
#include <cmath>

namespace tally::sched::simulate {

namespace {

constexpr uint64_t kQueueMax = 256;      // requests that wait inside,
constexpr uint64_t kQueueModelLens = 8;  // and their prompts together, in longest sequences
constexpr size_t kIntervalsMax = 32;     // beyond: neighbours are joined
constexpr uint64_t kStepsPerProgress = 4096;
constexpr Tick kTicksPerSecond = 1'000'000;

double seconds(Tick ticks) { return static_cast<double>(ticks) / static_cast<double>(kTicksPerSecond); }

class Replay {
 public:
  Replay(const Trace& trace, const Scenario& scenario)
      : trace_(trace),
        scenario_(scenario),
        planner_(make_planner(trace, scenario)),
        live_(trace.sequences() + 1),
        choices_ended_(trace.requests.size()) {
    ttft_.reserve(trace.requests.size());
    tpot_.reserve(live_.size());
    normalised_.reserve(live_.size());
  }

  Report run(const ReplayProgress& progress) {
    while (next_ < trace_.requests.size() || !planner_->idle()) {
      submit_arrived();
      if (planner_->idle()) {
        if (next_ < trace_.requests.size()) now_ = std::max(now_, trace_.requests[next_].arrival);
        continue;
      }
      step();
      if (progress && report_.steps % kStepsPerProgress == 0 &&
          !progress(report_.finished + report_.refusals()))
        break;
    }
    report_.counts = planner_->counts();
    report_.ttft_s = percentiles(ttft_);
    report_.tpot_s = percentiles(tpot_);
    report_.normalised_s = percentiles(normalised_);
    report_.gap_max_s = seconds(gap_max_);
    if (!report_.intervals.empty()) report_.intervals.back().end = report_.completion;
    return std::move(report_);
  }

 private:
  // A sequence, from the time its request is submitted.
  struct Live {
    Tick arrival = 0, first = 0, last = 0;
    uint32_t tokens = 0, request = 0;
    bool leads = false;  // the first choice of its request
  };

  bool has_room(uint64_t prompt) const {
    return queued_ == 0 ||
           (queued_ < kQueueMax && queued_tokens_ + prompt <= kQueueModelLens * scenario_.model_len_max);
  }

  void submit_arrived() {
    const auto has_come = [&](size_t i) {
      return i < trace_.requests.size() && trace_.requests[i].arrival <= now_;
    };
    for (; has_come(next_) && has_room(trace_.requests[next_].prompt); ++next_) {
      const TraceRequest& r = trace_.requests[next_];
      for (uint32_t c = 0; c < r.choices; ++c)
        live_[sequence_next_ + c] = {
            .arrival = r.arrival, .request = static_cast<uint32_t>(next_), .leads = c == 0};
      const Refusal refusal = planner_->submit(next_, SeqId{sequence_next_});
      sequence_next_ += r.choices;
      if (refusal != Refusal::kNone) {
        ++report_.refused[static_cast<size_t>(refusal)];
        continue;
      }
      ++queued_, queued_tokens_ += r.prompt;
      report_.prompt_tokens += r.prompt;
    }
    while (has_come(come_)) ++come_;
  }

  void step() {
    const StepPlan& plan = planner_->plan(now_);
    TALLY_CHECK(!plan.rows.empty(), "something waits or runs, and nothing is planned", queued_);
    Interval& interval = interval_of(now_);
    now_ += step_ticks(plan, scenario_.cost);
    ++report_.steps;
    for (const SeqId seq : plan.admitted) {
      const Live& live = live_[raw(seq)];
      if (live.leads) --queued_, queued_tokens_ -= trace_.requests[live.request].prompt;
    }
    outcomes_.clear();
    uint64_t logical = 0;
    bool decodes = false;
    for (const PlannedRows& group : plan.rows) {
      logical += group.position + group.rows;
      decodes = decodes || group.decode;
      if (!group.decode) report_.prompt_rows += group.rows;
      if (!group.wants_logits) continue;
      take_token(group.seq);
      for (uint32_t i = 0; i < group.begins; ++i) take_token(plan.begins[group.begins_at + i]);
    }
    interval.output_tokens += outcomes_.size();
    if (decodes) {
      const SlotUse use = planner_->slots();
      SlotSums sums;
      sums.add(use, logical, come_ - next_ + queued_);
      report_.running_max = std::max(report_.running_max, use.running);
      report_.slots.add(sums);
      interval.slots.add(sums);
    }
    for (const Ended& e : planner_->commit(outcomes_, now_)) end(e.seq);
  }

  // The present step gives this sequence a token.
  void take_token(SeqId seq) {
    outcomes_.push_back({.token = TokenId{static_cast<int32_t>(token_next_++ & 0x7FFFFFFF)}});
    Live& live = live_[raw(seq)];
    if (live.tokens++ == 0) {
      live.first = now_;
      if (live.leads) ttft_.push_back(seconds(now_ - live.arrival));
    } else {
      gap_max_ = std::max(gap_max_, now_ - live.last);
    }
    live.last = now_;
  }

  void end(SeqId seq) {
    const Live& live = live_[raw(seq)];
    const TraceRequest& r = trace_.requests[live.request];
    TALLY_CHECK(live.tokens == r.output, "tokens of a sequence, and of the trace", live.tokens, r.output);
    report_.output_tokens += live.tokens;
    report_.completion = now_;
    if (live.tokens > 1) tpot_.push_back(seconds(live.last - live.first) / (live.tokens - 1));
    normalised_.push_back(seconds(live.last - live.arrival) / live.tokens);
    if (++choices_ended_[live.request] == r.choices) ++report_.finished;
  }

  // The interval in which a step begins. Their length doubles when there would be too many.
  Interval& interval_of(Tick begin) {
    std::vector<Interval>& all = report_.intervals;
    while (static_cast<size_t>(begin / width_) >= kIntervalsMax) {
      width_ *= 2;
      for (size_t i = 0; i < all.size(); ++i) {
        Interval& into = all[i / 2];
        if (i % 2 == 0) {
          into = all[i];
        } else {
          into.slots.add(all[i].slots), into.output_tokens += all[i].output_tokens;
        }
        into.end = static_cast<Tick>(i / 2 + 1) * width_;
      }
      all.resize((all.size() + 1) / 2);
    }
    while (all.size() <= static_cast<size_t>(begin / width_))
      all.push_back({.end = static_cast<Tick>(all.size() + 1) * width_});
    return all[static_cast<size_t>(begin / width_)];
  }

  const Trace& trace_;
  Scenario scenario_;
  std::unique_ptr<Planner> planner_;
  std::vector<Live> live_;  // by sequence, from 1
  std::vector<uint32_t> choices_ended_;
  std::vector<double> ttft_, tpot_, normalised_;
  std::vector<Outcome> outcomes_;
  Report report_;
  size_t next_ = 0, come_ = 0;               // requests not submitted yet; that have not arrived yet
  uint64_t queued_ = 0, queued_tokens_ = 0;  // submitted and never scheduled; their prompts
  uint64_t sequence_next_ = 1, token_next_ = 0;
  Tick now_ = 0, width_ = kTicksPerSecond, gap_max_ = 0;
};

}  // namespace

Percentiles percentiles(std::vector<double>& values) {
  Percentiles out;
  out.n = values.size();
  if (values.empty()) return out;
  std::ranges::sort(values);
  const auto at = [&](double q) {
    const double h = static_cast<double>(values.size() - 1) * q, floor = std::floor(h);
    const size_t below = static_cast<size_t>(floor), above = std::min(below + 1, values.size() - 1);
    return values[below] + (h - floor) * (values[above] - values[below]);
  };
  for (const double v : values) out.mean += v;
  out.mean /= static_cast<double>(values.size());
  out.p50 = at(0.5), out.p95 = at(0.95), out.p99 = at(0.99), out.max = values.back();
  return out;
}

void SlotSums::add(const SlotUse& use, uint64_t logical_tokens, uint64_t waiting_requests) {
  ++steps;
  stored += use.stored, allocated += use.allocated, reserved += use.reserved, internal += use.internal();
  external += use.external;
  logical += logical_tokens;
  running += use.running, waiting += waiting_requests;
}

void SlotSums::add(const SlotSums& other) {
  steps += other.steps;
  stored += other.stored, allocated += other.allocated, reserved += other.reserved;
  internal += other.internal, external += other.external;
  logical += other.logical;
  running += other.running, waiting += other.waiting;
}

double SlotSums::utilisation() const {
  return allocated == 0 ? 0 : static_cast<double>(stored) / static_cast<double>(allocated);
}

uint64_t Report::refusals() const {
  uint64_t sum = 0;
  for (const uint64_t n : refused) sum += n;
  return sum;
}
double Report::output_rate() const {
  return completion == 0 ? 0 : static_cast<double>(output_tokens) / seconds(completion);
}
double Report::request_rate() const {
  return completion == 0 ? 0 : static_cast<double>(finished) / seconds(completion);
}

Tick step_ticks(const StepPlan& plan, const StepCost& cost) {
  return std::max<Tick>(1, static_cast<Tick>(step_cost(cost, plan) + 0.5));
}

Report replay(const Trace& trace, const Scenario& scenario, const ReplayProgress& progress) {
  return Replay(trace, scenario).run(progress);
}

}  // namespace tally::sched::simulate
