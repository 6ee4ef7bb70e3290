// Drafts: tokens that are guessed to follow those of a decoding sequence, computed in the same step as its
// row. They have what nobody else wants in that step, and leave nothing behind: what is in the tables, the
// fill marks and the index is what was committed.

#include "base/check.h"
#include "sched/core.h"

#include <algorithm>

namespace tally::sched {

namespace {

// Rows and logits that the plan has left.
struct Left {
  uint32_t rows = 0, logits = 0;
};

Left left_of(const Core& core) {
  Left left{core.config.step_tokens, core.config.logits_rows_max};
  for (const PlannedRows& group : core.plan.rows) left.rows -= group.rows, left.logits -= group.logits;
  return left;
}

// With prompt rows the time of a step is theirs, where it has a bound.
bool time_is_taken(const Core& core) {
  return core.config.step_latency > 0 &&
         std::ranges::any_of(core.plan.rows, [](const PlannedRows& group) { return !group.decode; });
}

// So many of the wanted drafts have blocks. Free ones only: neither is anyone preempted for a guess, nor
// anything evicted.
uint32_t give_blocks(Core& core, Sequence& seq, uint32_t wanted, Tick now) {
  const uint32_t known = seq.known();
  while (seq.table.size() < core.blocks_for(known + wanted)) {
    if (!core.has(1) || core.ledger.stats().free == 0) {
      core.count(Branch::kDraftNoBlock);
      return seq.table.size() * core.block_tokens - known;
    }
    seq.table.push(*core.ledger.take(now));
    core.count(Branch::kDraftBlock);
  }
  return wanted;
}

void add_drafts(Core& core, size_t at, Left& left, Tick now) {
  Sequence& seq = *core.planned[at];
  PlannedRows& group = core.plan.rows[at];
  if (seq.offered == 0 || !group.decode || seq.is_beam()) return;
  // With all of them accepted there is one token more, the last of the sequence if there may be no other.
  const uint32_t room = seq.tokens_max - seq.known() - 1;
  uint32_t drafts = std::min({seq.offered, room, left.rows, left.logits});
  if (drafts < seq.offered) core.count(Branch::kDraftShort);
  if (drafts > 0) drafts = give_blocks(core, seq, drafts, now);
  if (drafts == 0) return;
  core.count(Branch::kDrafted);
  const uint32_t first = group.position + group.rows;
  group.rows += drafts, group.logits += drafts, group.drafts = drafts;
  left.rows -= drafts, left.logits -= drafts;
  for (uint32_t position = first; position < first + drafts; ++position)
    core.ledger.expect_writable(seq.table[position / core.block_tokens], position % core.block_tokens);
}

}  // namespace

void plan_drafts(Core& core, Tick now) {
  if (!core.offers) return;
  if (!time_is_taken(core)) {
    Left left = left_of(core);
    for (size_t at = 0; at < core.planned.size(); ++at) add_drafts(core, at, left, now);
  }
  for (Sequence* seq : core.running) seq->offered = 0;
  for (Sequence* seq : core.waiting) seq->offered = 0;  // preempted for this step
  core.offers = false;
}

void settle_drafts(Core& core, std::span<const Outcome> outcomes, Tick now) {
  core.outcome_at.clear();
  size_t next = 0;
  for (const PlannedRows& group : core.plan.rows) {
    core.outcome_at.push_back(next);
    if (!group.wants_logits) continue;
    TALLY_CHECK(next < outcomes.size(), "an outcome for each row group with logits", next, outcomes.size());
    const uint32_t accepted = outcomes[next].accepted;
    TALLY_CHECK(accepted <= group.drafts && next + accepted < outcomes.size(), "drafts accepted and planned",
                raw(group.seq), accepted, group.drafts, outcomes.size());
    for (const Outcome& draft : outcomes.subspan(next, accepted))
      TALLY_CHECK(!draft.stop && !draft.failed, "a token behind the end", raw(group.seq));
    next += group.outcomes() + accepted;
  }
  TALLY_CHECK(next <= outcomes.size(), "an outcome for each row group with logits", next, outcomes.size());
  TALLY_CHECK(next >= outcomes.size(), "more outcomes than row groups with logits", next, outcomes.size());
  for (size_t at = core.planned.size(); at-- > 0;) {
    const PlannedRows& group = core.plan.rows[at];
    if (group.drafts == 0) continue;
    Sequence& seq = *core.planned[at];
    const uint32_t accepted = outcomes[core.outcome_at[at]].accepted;
    core.count(accepted == group.drafts ? Branch::kDraftAccepted : Branch::kDraftRejected);
    if (core.reserves()) continue;
    while (seq.table.size() > core.blocks_for(group.position + 1 + accepted)) {
      drop_tail(core, seq, now);
      core.count(Branch::kDraftReturned);
    }
    seq.stats.blocks_peak = std::max(seq.stats.blocks_peak, seq.table.size());
  }
}

}  // namespace tally::sched
