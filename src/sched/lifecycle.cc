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

namespace {

// The end of one sequence that is in no list any more.
void finish(Core& core, Sequence& seq, EndReason reason, std::vector<Ended>& into, Tick now) {
  seq.stats.blocks = seq.table.size();
  for (uint32_t i = 0; i < seq.table.size(); ++i) {
    seq.stats.blocks_shared += core.ledger.owners(seq.table[i]) > 1 ? 1 : 0;
  }
  while (!seq.table.empty()) drop_tail(core, seq, now);
  seq.chain.clear();
  if (seq.family) {
    std::erase(seq.family->members, &seq);
    if (seq.family->members.empty()) release_aside(core, seq);
  }
  seq.state = SeqState::kEnded;
  leave_tenant(core, seq.tenant);
  seq.tenant = nullptr;
  core.gone.push_back(&seq);
  into.push_back({seq.id, reason});
}

void leave_list(Core& core, Sequence& seq) {
  const bool runs = seq.state == SeqState::kPrefilling || seq.state == SeqState::kDecoding;
  remove_ordered(runs ? core.running : core.waiting, seq);
  if (runs) core.seats_unborn -= static_cast<uint32_t>(seq.unborn.size());
  if (seq.state != SeqState::kWaiting) return;
  core.never_scheduled -= 1 + static_cast<uint32_t>(seq.unborn.size());
  core.waiting_tokens -= seq.prompt;
}

}  // namespace

void end_sequence(Core& core, Sequence& seq, EndReason reason, std::vector<Ended>& into, Tick now) {
  TALLY_CHECK(seq.state != SeqState::kEnded, "S6: a second end", raw(seq.id));
  if (seq.is_beam()) {
    while (!seq.family->members.empty()) {
      Sequence& beam = *seq.family->members.front();
      leave_list(core, beam);
      finish(core, beam, reason, into, now);
    }
    return;
  }
  leave_list(core, seq);
  for (Sequence* child : seq.unborn) finish(core, *child, reason, into, now);
  seq.unborn.clear();
  finish(core, seq, reason, into, now);
}

void forget_ended(Core& core) {
  for (const Sequence* seq : core.gone) core.sequences.erase(seq->id);
  core.gone.clear();
}

namespace {

// The choices that wait to be forked from `seq` may be cancelled one by one, and so may `seq`: then one of
// them goes on with what it computed.
void cancel_choices(Core& core, Sequence& seq, Tick now) {
  const bool runs = seq.state == SeqState::kPrefilling, queued = seq.state == SeqState::kWaiting;
  for (size_t i = 0; i < seq.unborn.size();) {
    Sequence& child = *seq.unborn[i];
    if (!child.cancelled) {
      ++i;
      continue;
    }
    if (runs) --core.seats_unborn;
    if (queued) --core.never_scheduled;
    seq.unborn.erase(seq.unborn.begin() + static_cast<ptrdiff_t>(i));
    finish(core, child, *child.cancelled, core.plan.ended, now);
  }
  if (!seq.cancelled || seq.unborn.empty()) return;
  hand_over(core, seq);
  if (queued) --core.never_scheduled;
  finish(core, seq, *seq.cancelled, core.plan.ended, now);
}

// One beam cancelled is all of them cancelled.
void cancel_together(Sequence& seq) {
  if (!seq.family || !seq.family->beams) return;
  for (const Sequence* beam : seq.family->members) {
    if (beam->cancelled) seq.cancelled = beam->cancelled;
  }
}

}  // namespace

void apply_cancels_and_deadlines(Core& core, Tick now) {
  for (auto* list : {&core.running, &core.waiting}) {
    for (size_t i = 0; i < list->size();) {
      Sequence& seq = *(*list)[i];
      const bool late = seq.deadline != 0 && now >= seq.deadline;
      cancel_together(seq);
      const bool together = seq.family && seq.family->beams;
      if (!seq.unborn.empty() && !together) cancel_choices(core, seq, now);
      if ((*list)[i] != &seq) continue;  // another choice stands in its place
      if (seq.cancelled) {
        end_sequence(core, seq, *seq.cancelled, core.plan.ended, now);
      } else if (late) {
        end_sequence(core, seq, EndReason::kDeadline, core.plan.ended, now);
      } else {
        ++i;
      }
    }
  }
}

namespace {

// The rows of the step are in the cache: fill marks, full blocks into the index. Of drafts only those that
// were accepted: what others wrote is behind the fill mark, where the next rows go.
void commit_rows(Core& core, Sequence& seq, const PlannedRows& group, uint32_t accepted) {
  seq.computed = group.position + group.rows - group.drafts + accepted;
  seq.computed_peak = std::max(seq.computed_peak, seq.computed);
  seq.score_next += group.scores;
  seq.stats.recomputed_tokens += group.recomputed;
  core.totals.recomputed_tokens += group.recomputed;
  for (uint32_t i = group.position / core.block_tokens; i < core.blocks_for(seq.computed); ++i) {
    core.ledger.commit_rows(seq.table[i], std::min(core.block_tokens, seq.computed - i * core.block_tokens));
  }
  extend_chain(core, seq);
}

}  // namespace

namespace {

void take_token(Sequence& seq, const Outcome& outcome) {
  seq.tokens.push_back(outcome.token);
  ++seq.tenant->served;
  if (seq.immune > 0) --seq.immune;
}

// Rows in the cache, choices begun, results listed: nothing but drafts is appended yet, so that beams can
// fork.
void commit_group(Core& core, const PlannedRows& group, Sequence& seq, std::span<const Outcome> outcomes,
                  Tick now) {
  if (seq.state == SeqState::kEnded) return;  // with another beam
  // One beam that fails fails all; of other choices the prompt's row is as good as one that can use it.
  const bool together = seq.family && seq.family->beams;
  const bool failed = together ? std::ranges::any_of(outcomes, &Outcome::failed)
                               : !outcomes.empty() && std::ranges::all_of(outcomes, &Outcome::failed);
  if (seq.row_failed || failed) {
    end_sequence(core, seq, EndReason::kFailed, core.ended, now);
    return;
  }
  const uint32_t accepted = outcomes.empty() ? 0 : outcomes[0].accepted;
  // Their rows are in the cache: they are known before full blocks of them are registered.
  for (const Outcome& draft : outcomes.first(accepted)) take_token(seq, draft);
  commit_rows(core, seq, group, accepted);
  if (seq.prompt_only && seq.remaining() == 0) end_sequence(core, seq, EndReason::kLength, core.ended, now);
  if (outcomes.empty()) return;
  const size_t first = core.results.size();
  core.results.push_back({&seq, &outcomes[accepted]});
  for (Sequence* child : seq.unborn) core.results.push_back({child, &outcomes[core.results.size() - first]});
  if (!seq.unborn.empty()) begin_choices(core, seq);
}

void append(Core& core, Sequence& seq, const Outcome& outcome, Tick now) {
  if (seq.state == SeqState::kEnded) return;
  if (outcome.failed) {
    end_sequence(core, seq, EndReason::kFailed, core.ended, now);
    return;
  }
  take_token(seq, outcome);
  seq.state = SeqState::kDecoding;
}

}  // namespace

void commit_step(Core& core, std::span<const Outcome> outcomes, Tick now) {
  core.ended.clear();
  core.results.clear();
  settle_drafts(core, outcomes, now);
  for (size_t i = 0; i < core.planned.size(); ++i) {
    const size_t begin = core.outcome_at[i];
    const size_t end = i + 1 < core.planned.size() ? core.outcome_at[i + 1] : outcomes.size();
    commit_group(core, core.plan.rows[i], *core.planned[i], outcomes.subspan(begin, end - begin), now);
  }
  for (const auto& [seq, outcome] : core.results) {
    if (outcome->from && seq->state != SeqState::kEnded)
      continue_from(core, *seq, core.find(*outcome->from), now);
  }
  for (const auto& [seq, outcome] : core.results) append(core, *seq, *outcome, now);
  for (const auto& [seq, outcome] : core.results) {
    if (seq->state == SeqState::kEnded) continue;
    if (outcome->stop) {
      end_sequence(core, *seq, EndReason::kStop, core.ended, now);
    } else if (seq->known() == seq->tokens_max) {
      end_sequence(core, *seq, EndReason::kLength, core.ended, now);
    }
  }
  core.planned.clear();
  core.in_flight = false;
}

void abandon_step(Core& core, Tick now) {
  core.ended.clear();
  for (Sequence* seq : core.planned) {
    if (seq->state != SeqState::kEnded) end_sequence(core, *seq, EndReason::kFailed, core.ended, now);
  }
  core.planned.clear();
  core.in_flight = false;
}

}  // namespace tally::sched
