// Where sequences are listed, how a step's results reach them, and how they end.

#include "base/check.h"
#include "sched/core.h"

#include <algorithm>

namespace tally::sched {

namespace {
bool earlier(const Sequence* a, const Sequence* b) { return a->before(*b); }
}  // namespace

void insert_ordered(std::vector<Sequence*>& list, Sequence& seq) {
  list.insert(std::upper_bound(list.begin(), list.end(), &seq, earlier), &seq);
}

void remove_ordered(std::vector<Sequence*>& list, const Sequence& seq) {
  const auto at = std::lower_bound(list.begin(), list.end(), &seq, earlier);
  TALLY_CHECK(at != list.end() && *at == &seq, "sequence missing from its list", raw(seq.id));
  list.erase(at);
}

void end_sequence(Core& core, Sequence& seq, EndReason reason, std::vector<Ended>& into, Tick now) {
  TALLY_CHECK(seq.state != SeqState::kEnded, "S6: a second end", raw(seq.id));
  const bool runs = seq.state == SeqState::kPrefilling || seq.state == SeqState::kDecoding;
  remove_ordered(runs ? core.running : core.waiting, seq);
  if (seq.state == SeqState::kWaiting) {
    --core.never_scheduled;
    core.waiting_tokens -= seq.prompt;
  }
  seq.stats.blocks = seq.table.size();
  for (uint32_t i = 0; i < seq.table.size(); ++i) {
    seq.stats.blocks_shared += core.ledger.owners(seq.table[i]) > 1 ? 1 : 0;
  }
  while (!seq.table.empty()) {
    core.ledger.drop(seq.table.back(), now);
    seq.table.pop();
  }
  seq.chain.clear();
  seq.state = SeqState::kEnded;
  core.gone.push_back(&seq);
  into.push_back({seq.id, reason});
}

void forget_ended(Core& core) {
  for (const Sequence* seq : core.gone) core.sequences.erase(seq->id);
  core.gone.clear();
}

void apply_cancels_and_deadlines(Core& core, Tick now) {
  for (auto* list : {&core.running, &core.waiting}) {
    for (size_t i = 0; i < list->size();) {
      Sequence& seq = *(*list)[i];
      if (seq.cancelled) {
        end_sequence(core, seq, *seq.cancelled, core.plan.ended, now);
      } else if (seq.deadline != 0 && now >= seq.deadline) {
        end_sequence(core, seq, EndReason::kDeadline, core.plan.ended, now);
      } else {
        ++i;
      }
    }
  }
}

namespace {

// The rows of the step are in the cache: fill marks, full blocks into the index.
void commit_rows(Core& core, Sequence& seq, const PlannedRows& group) {
  seq.computed = group.position + group.rows;
  seq.computed_peak = std::max(seq.computed_peak, seq.computed);
  seq.stats.recomputed_tokens += group.recomputed;
  core.totals.recomputed_tokens += group.recomputed;
  for (uint32_t i = group.position / core.block_tokens; i < core.blocks_for(seq.computed); ++i) {
    core.ledger.commit_rows(seq.table[i], std::min(core.block_tokens, seq.computed - i * core.block_tokens));
  }
  extend_chain(core, seq);
}

}  // namespace

void commit_step(Core& core, std::span<const Outcome> outcomes, Tick now) {
  core.ended.clear();
  size_t used = 0;
  for (size_t i = 0; i < core.planned.size(); ++i) {
    const PlannedRows& group = core.plan.rows[i];
    Sequence& seq = *core.planned[i];
    const Outcome* outcome = nullptr;
    if (group.wants_logits) {
      TALLY_CHECK(used < outcomes.size(), "an outcome for each row group with logits", used, outcomes.size());
      outcome = &outcomes[used++];
    }
    if (seq.row_failed || (outcome != nullptr && outcome->failed)) {
      end_sequence(core, seq, EndReason::kFailed, core.ended, now);
      continue;
    }
    commit_rows(core, seq, group);
    if (outcome == nullptr) continue;
    seq.tokens.push_back(outcome->token);
    seq.state = SeqState::kDecoding;
    if (seq.immune > 0) --seq.immune;
    if (outcome->stop) {
      end_sequence(core, seq, EndReason::kStop, core.ended, now);
    } else if (seq.known() == seq.tokens_max) {
      end_sequence(core, seq, EndReason::kLength, core.ended, now);
    }
  }
  TALLY_CHECK(used == outcomes.size(), "more outcomes than row groups with logits", used, outcomes.size());
  core.planned.clear();
  core.in_flight = false;
}

void abandon_step(Core& core, Tick now) {
  core.ended.clear();
  for (Sequence* seq : core.planned) end_sequence(core, *seq, EndReason::kFailed, core.ended, now);
  core.planned.clear();
  core.in_flight = false;
}

}  // namespace tally::sched
