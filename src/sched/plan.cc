#include "sched/plan.h"

#include "base/check.h"
#include "sched/core.h"

namespace tally::sched {

struct Scheduler::State {
  State(const Config& config, kv::Ledger& ledger) : core(config, ledger) {}
  Core core;
};

Scheduler::Scheduler(const Config& config, kv::Ledger& ledger)
    : state_(std::make_unique<State>(config, ledger)) {}
Scheduler::~Scheduler() = default;

Admission Scheduler::submit(Request request) { return admit_to_queue(state_->core, std::move(request)); }

void Scheduler::cancel(SeqId seq, EndReason reason) {
  const auto found = state_->core.sequences.find(seq);
  if (found == state_->core.sequences.end() || found->second->state == SeqState::kEnded) return;
  if (!found->second->cancelled) found->second->cancelled = reason;
}

void Scheduler::release(SeqId seq) { state_->core.find(seq).held = false; }

bool Scheduler::waits(SeqId seq) const {
  const auto& sequences = state_->core.sequences;
  const auto at = sequences.find(seq);
  return at != sequences.end() && at->second->state == SeqState::kWaiting;
}

uint32_t Scheduler::matched_blocks(SeqId seq) {
  match_prefix(state_->core, state_->core.find(seq));
  return static_cast<uint32_t>(state_->core.path.size());
}

std::span<const BlockId> Scheduler::adopt(SeqId seq, uint32_t most, Tick now) {
  Core& core = state_->core;
  adopt_blocks(core, core.find(seq), most, now);
  return core.adoption.taken.ids();
}

void Scheduler::adopted(uint32_t good, Tick now) { index_adopted(state_->core, good, now); }

void Scheduler::set_cost(const StepCost& cost) { state_->core.cost = cost; }

void Scheduler::offer(SeqId seq, uint32_t drafts) {
  Core& core = state_->core;
  const auto found = core.sequences.find(seq);
  if (found == core.sequences.end() || found->second->state != SeqState::kDecoding) return;
  found->second->offered = drafts;
  core.offers |= drafts > 0;
}

const StepPlan& Scheduler::plan(Tick now) {
  Core& core = state_->core;
  TALLY_CHECK(!core.in_flight, "plan before the last one was committed", core.plan.rows.size());
  forget_ended(core);
  core.plan.rows.clear();
  core.plan.ended.clear();
  core.plan.preempted.clear();
  core.plan.admitted.clear();
  core.plan.begins.clear();
  core.plan.copies.assign(core.copies_due.begin(), core.copies_due.end());
  core.copies_due.clear();
  core.planned.clear();

  apply_cancels_and_deadlines(core, now);
  plan_decodes(core, now);
  if (core.plan.preempted.empty()) {
    admit_waiting(core, now);
  } else {
    core.count(Branch::kNoAdmission);
  }
  plan_prefills(core, now);
  if (core.plan.rows.empty() && !core.running.empty()) plan_standstill(core, now);
  plan_drafts(core, now);

  core.left_waiting = core.never_scheduled > 0;
  core.in_flight = !core.plan.rows.empty();
  core.plan.predicted = step_cost(core.cost, core.plan);
  return core.plan;
}

std::span<const Ended> Scheduler::commit(std::span<const Outcome> outcomes, Tick now) {
  commit_step(state_->core, outcomes, now);
  return state_->core.ended;
}

void Scheduler::fail(SeqId seq) { state_->core.find(seq).row_failed = true; }

std::span<const Ended> Scheduler::abandon(Tick now) {
  abandon_step(state_->core, now);
  return state_->core.ended;
}

std::span<const TokenId> Scheduler::tokens(SeqId seq) const { return state_->core.find(seq).tokens; }
std::span<const BlockId> Scheduler::table(SeqId seq) const { return state_->core.find(seq).table.ids(); }
SeqState Scheduler::state(SeqId seq) const { return state_->core.find(seq).state; }
std::span<const uint64_t> Scheduler::branches() const { return state_->core.branches; }

SequenceStats Scheduler::stats(SeqId seq) const {
  const Core& core = state_->core;
  const Sequence& s = core.find(seq);
  SequenceStats out = s.stats;
  out.prompt_tokens = s.prompt;
  out.generated_tokens = s.known() - s.prompt;
  if (s.state == SeqState::kEnded) return out;
  out.blocks = s.table.size();
  out.blocks_shared = 0;
  for (uint32_t i = 0; i < s.table.size(); ++i)
    out.blocks_shared += core.ledger.owners(s.table[i]) > 1 ? 1 : 0;
  return out;
}

QueueStats Scheduler::queue_stats() const {
  const Core& core = state_->core;
  QueueStats out = core.totals;
  out.running = static_cast<uint32_t>(core.running.size());
  out.waiting = static_cast<uint32_t>(core.waiting.size());
  out.waiting_tokens = core.waiting_tokens;
  for (const Sequence* seq : core.waiting) {
    if (out.oldest_arrival == 0 || seq->arrival < out.oldest_arrival) out.oldest_arrival = seq->arrival;
  }
  return out;
}

bool Scheduler::idle() const { return state_->core.waiting.empty() && state_->core.running.empty(); }

void Scheduler::check() const { check_core(state_->core); }

}  // namespace tally::sched
