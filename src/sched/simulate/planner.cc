// The scheduler that serves, given the requests of a trace.

#include "sched/simulate/planner.h"

#include "base/check.h"
#include "sched/simulate/allocators.h"

#include <algorithm>

namespace tally::sched::simulate {

namespace {

Config scheduler_config(const Scenario& scenario) {
  Config c;
  c.seqs_max = scenario.seqs_max;
  c.queue_max = UINT32_MAX;  // the replay bounds the queue, and lets the others wait outside
  c.queue_tokens_max = UINT64_MAX;
  c.step_tokens = scenario.step_tokens;
  c.model_len_max = scenario.model_len_max;
  c.batching = scenario.batching;
  c.allocator = scenario.scheme == Scheme::kReserve ? Allocator::kReserve : Allocator::kPaged;
  c.step_latency = scenario.step_latency;
  return c;
}

class SchedulerPlanner final : public Planner {
 public:
  SchedulerPlanner(const Trace& trace, const Scenario& scenario)
      : trace_(trace),
        scenario_(scenario),
        ledger_({.blocks = scenario.pool_tokens / scenario.block_tokens,
                 .block_tokens = scenario.block_tokens,
                 .prefix_cache = scenario.prefix_cache}),
        scheduler_(scheduler_config(scenario), ledger_),
        ends_(trace.sequences() + 1),
        reserved_(ends_.size()) {
    scheduler_.set_cost(scenario.cost);
  }

  Refusal submit(size_t request, SeqId first) override {
    const TraceRequest& r = trace_.requests[request];
    Request out;
    out.seq = first;
    out.choices = r.choices;
    out.max_tokens = r.output;
    out.arrival = r.arrival;
    if (uint64_t{r.prompt} + r.output <= scenario_.model_len_max) {
      out.prompt.reserve(size_t{r.prompt} + r.output);
      prompt_ids(trace_, request, out.prompt);
    } else {
      out.prompt.resize(r.prompt);  // refused by its length alone
    }
    for (uint32_t c = 0; c < r.choices; ++c) ends_[raw(first) + c] = r.prompt + r.output - 1;
    return scheduler_.submit(std::move(out)).refusal;
  }

  const StepPlan& plan(Tick now) override {
    const StepPlan& plan = scheduler_.plan(now);
    rows_ = 0;
    for (const Preempted& p : plan.preempted) forget(p.seq);
    for (const PlannedRows& group : plan.rows) {
      rows_ += group.rows;
      const uint32_t length = group.position + group.rows, end = ends_[raw(group.seq)];
      const uint32_t in_block = length % scenario_.block_tokens;
      const uint32_t tail = in_block == 0 ? 0 : scenario_.block_tokens - in_block;
      forget(group.seq);
      reserved_[raw(group.seq)] =
          scenario_.scheme == Scheme::kReserve ? end - length : std::min(tail, end - length);
      reserved_sum_ += reserved_[raw(group.seq)];
    }
    return plan;
  }

  SlotUse slots() const override {
    const kv::LedgerStats ledger = ledger_.stats();
    SlotUse out;
    out.allocated = (uint64_t{ledger.held} + ledger.both) * scenario_.block_tokens;
    out.stored = out.allocated - ledger.waste_tokens + rows_;
    // A tail that several choices still share is filled by one of them only.
    out.reserved = std::min(reserved_sum_, out.allocated - out.stored);
    out.running = scheduler_.queue_stats().running;
    return out;
  }

  std::span<const Ended> commit(std::span<const Outcome> outcomes, Tick now) override {
    const std::span<const Ended> ended = scheduler_.commit(outcomes, now);
    for (const Ended& e : ended) forget(e.seq);
    return ended;
  }

  PlannerCounts counts() const override {
    const QueueStats q = scheduler_.queue_stats();
    PlannerCounts out;
    out.preemptions = q.preemptions;
    out.recomputed_tokens = q.recomputed_tokens;
    out.copies = q.copied_blocks;
    out.copied_tokens = q.copied_blocks * scenario_.block_tokens;
    out.prefix_queries_tokens = q.prefix_queries_tokens;
    out.prefix_hits_tokens = q.prefix_hits_tokens;
    return out;
  }

  bool idle() const override { return scheduler_.idle(); }

 private:
  void forget(SeqId seq) {
    reserved_sum_ -= reserved_[raw(seq)];
    reserved_[raw(seq)] = 0;
  }

  const Trace& trace_;
  Scenario scenario_;
  kv::Ledger ledger_;
  Scheduler scheduler_;
  // By sequence, from 1: what it will have stored at its end, and how many slots that it has now are for
  // that.
  std::vector<uint32_t> ends_, reserved_;
  uint64_t reserved_sum_ = 0, rows_ = 0;
};

}  // namespace

std::unique_ptr<Planner> make_planner(const Trace& trace, const Scenario& scenario) {
  TALLY_CHECK(scenario.block_tokens >= 1 && scenario.pool_tokens >= scenario.block_tokens,
              "the pool holds no block", scenario.pool_tokens, scenario.block_tokens);
  TALLY_CHECK(scenario.seqs_max >= 1 && scenario.step_tokens >= 1 && scenario.model_len_max >= 1,
              "sizes of a replay", scenario.seqs_max, scenario.step_tokens, scenario.model_len_max);
  if (scenario.scheme == Scheme::kPaged || scenario.scheme == Scheme::kReserve)
    return std::make_unique<SchedulerPlanner>(trace, scenario);
  return std::make_unique<ContiguousPlanner>(trace, scenario);
}

}  // namespace tally::sched::simulate
