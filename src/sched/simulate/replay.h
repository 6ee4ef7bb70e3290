#pragma once
// Replays a trace on a virtual clock: plan a step, let it take the time that its cost says, commit it. No
// model, no threads, no time of day: the same trace and scenario give the same report, byte for byte.

#include "sched/simulate/planner.h"
#include "sched/simulate/trace.h"

#include <array>
#include <cstdint>
#include <functional>
#include <vector>

namespace tally::sched::simulate {

// Of a sample of n values: mean, and percentiles by linear interpolation between ranks (Hyndman-Fan type 7).
struct Percentiles {
  uint64_t n = 0;
  double mean = 0, p50 = 0, p95 = 0, p99 = 0, max = 0;
};
// Sorts `values`.
Percentiles percentiles(std::vector<double>& values);

// Sums over steps with at least one decode row; each is the state after the step's rows were stored.
struct SlotSums {
  uint64_t steps = 0;
  uint64_t stored = 0, allocated = 0, reserved = 0, internal = 0, external = 0;
  uint64_t logical = 0;  // as stored, but what several sequences share counts for each that has rows
  uint64_t running = 0, waiting = 0;

  void add(const SlotUse& use, uint64_t logical_tokens, uint64_t waiting_requests);
  void add(const SlotSums& other);
  // stored / allocated; 0 without a step.
  double utilisation() const;
};

struct Interval {
  Tick end = 0;
  SlotSums slots{};
  uint64_t output_tokens = 0;
};

struct Report {
  uint64_t finished = 0;              // requests, all their choices at their end
  std::array<uint64_t, 5> refused{};  // at the door, by Refusal
  uint64_t steps = 0;
  uint64_t output_tokens = 0, prompt_tokens = 0;  // of the requests that were not refused
  uint64_t prompt_rows = 0;                       // computed, with those computed again
  Tick completion = 0;                            // the last end, from the first arrival
  uint32_t running_max = 0;
  SlotSums slots;
  PlannerCounts counts;
  Percentiles ttft_s;               // arrival to first token, of a request
  Percentiles tpot_s;               // (last - first) / (tokens - 1), of a sequence with two tokens or more
  Percentiles normalised_s;         // (last - arrival) / tokens, of a sequence
  double gap_max_s = 0;             // between two tokens of a sequence
  std::vector<Interval> intervals;  // 16 to 32 of one length, the last cut short; fewer in a short run

  uint64_t refusals() const;
  double output_rate() const;   // tokens a second, over the completion time
  double request_rate() const;  // requests finished a second
};

// Ticks that a step takes: fixed + max(weights, rows x row) + positions read, at least one.
Tick step_ticks(const StepPlan& plan, const StepCost& cost);

// Called now and then with requests finished or refused; false ends the replay early.
using ReplayProgress = std::function<bool(uint64_t done)>;

// Requires: what make_planner requires. While the queue is as long as a server lets it be, requests wait
// outside in order of arrival: none is refused for want of room in it.
Report replay(const Trace& trace, const Scenario& scenario, const ReplayProgress& progress);

}  // namespace tally::sched::simulate
