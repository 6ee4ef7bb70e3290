// The recount of the scheduler's invariants, and of the ledger's against all tables.

#include "base/check.h"

#include "sched/core.h"

#include <algorithm>
#include <utility>

namespace tally::sched {

namespace {

PlannedRows in_flight(const Core& core, const Sequence& seq) {
  for (size_t i = 0; i < core.planned.size(); ++i) {
    if (core.planned[i] == &seq) return core.plan.rows[i];
  }
  return {};
}

void check_list(const Core& core, const std::vector<Sequence*>& list, bool runs) {
  for (size_t i = 0; i < list.size(); ++i) {
    const Sequence& seq = *list[i];
    TALLY_CHECK(i == 0 || list[i - 1]->before(seq), "order of a list", raw(seq.id));
    TALLY_CHECK(&core.find(seq.id) == &seq, "S2: listed but unknown", raw(seq.id));
    const bool is_running = seq.state == SeqState::kPrefilling || seq.state == SeqState::kDecoding;
    const bool is_waiting = seq.state == SeqState::kWaiting || seq.state == SeqState::kPreempted;
    TALLY_CHECK(runs ? is_running : is_waiting, "S2: state and list differ", raw(seq.id),
                static_cast<int>(seq.state));
  }
}

void check_sequence(const Core& core, const Sequence& seq) {
  const auto [rows, drafts] = [&] {
    const PlannedRows group = in_flight(core, seq);
    return std::pair(group.rows, group.drafts);
  }();
  TALLY_CHECK(seq.computed + rows - drafts <= seq.known() && seq.known() <= seq.tokens_max,
              "tokens: computed, known, limit", raw(seq.id), seq.computed + rows, seq.known(),
              seq.tokens_max);
  TALLY_CHECK(drafts == 0 || seq.known() + drafts < seq.tokens_max, "drafts beyond the limit", raw(seq.id),
              seq.known(), drafts, seq.tokens_max);
  const bool runs = seq.state == SeqState::kPrefilling || seq.state == SeqState::kDecoding;
  TALLY_CHECK(seq.table.size() == (core.reserves() && runs ? reservation_blocks(core)
                                                           : core.blocks_for(seq.computed + uint64_t{rows})),
              "L5: blocks of a sequence", raw(seq.id), seq.table.size(), seq.computed + rows);
  TALLY_CHECK(seq.state != SeqState::kWaiting || seq.table.empty(), "waiting with blocks", raw(seq.id),
              seq.table.size());
  TALLY_CHECK(seq.state != SeqState::kDecoding || seq.remaining() == 1, "decoding with rows left",
              raw(seq.id));
  TALLY_CHECK(seq.stats.recomputed_tokens == 0 || seq.stats.preemptions > 0, "recomputed without cause",
              raw(seq.id));
  TALLY_CHECK(!seq.has_scores_left() || seq.computed < seq.score_next, "S11: a row that had to score was not",
              raw(seq.id), seq.computed, seq.score_next);
  TALLY_CHECK(seq.known() == seq.prompt || !seq.has_scores_left(), "S11: generates before all is scored",
              raw(seq.id), seq.score_next, seq.prompt);
  for (uint32_t i = 0; i < seq.table.size(); ++i) {
    const uint32_t start = i * core.block_tokens;
    const uint32_t fill = std::min(core.block_tokens, std::max(seq.computed, start) - start);
    TALLY_CHECK(core.ledger.info(seq.table[i].id).fill == fill, "fill mark", raw(seq.id),
                raw(seq.table[i].id), fill);
    if (!core.ledger.is_entry(seq.table[i])) continue;
    const auto ids = std::span(seq.tokens).subspan(start, core.block_tokens);
    TALLY_CHECK(std::ranges::equal(core.ledger.entry_ids(seq.table[i]), ids),
                "L6: ids of an entry in a table", raw(seq.id), raw(seq.table[i].id));
  }
}

// Choices that wait to be forked: in no list, without blocks but those reserved for them.
void check_unborn(const Core& core, const Sequence& root, std::vector<const kv::BlockTable*>& tables) {
  TALLY_CHECK(root.unborn.empty() || root.known() == root.prompt, "unborn choices of one that generates",
              raw(root.id));
  for (const Sequence* child : root.unborn) {
    TALLY_CHECK(child->state == SeqState::kWaiting && child->family == root.family && child->unborn.empty() &&
                    child->known() == child->prompt && child->before(root) == false,
                "an unborn choice", raw(child->id), static_cast<int>(child->state));
    TALLY_CHECK(child->table.empty() || core.reserves(), "an unborn choice with blocks", raw(child->id));
    tables.push_back(&child->table);
  }
}

// What beams may still take is what they could have, less the blocks that are theirs alone.
void check_reserve(const Core& core) {
  uint64_t reserved = 0;
  for (const Sequence* seq : core.running) {
    if (!seq->family || !seq->family->beams || core.reserves()) continue;
    if (seq != seq->family->members.front()) continue;
    reserved += seq->family->reserve;
    std::vector<BlockId> own;
    for (const Sequence* beam : seq->family->members) {
      TALLY_CHECK(!seq->is_beam() || (beam->is_beam() && beam->known() == seq->known()), "beams out of step",
                  raw(beam->id));
      for (uint32_t i = seq->prompt / core.block_tokens; seq->is_beam() && i < beam->table.size(); ++i)
        own.push_back(beam->table[i].id);
    }
    std::ranges::sort(own);
    own.erase(std::ranges::unique(own).begin(), own.end());
    const uint64_t most = uint64_t{seq->family->members.size()} *
                          core.blocks_for(seq->tokens_max - seq->prompt + seq->prompt % core.block_tokens);
    const uint64_t taken = seq->is_beam() ? own.size() : seq->prompt % core.block_tokens > 0 ? 1 : 0;
    TALLY_CHECK(seq->family->reserve + taken == most, "blocks set aside for beams", raw(seq->id),
                seq->family->reserve, taken, most);
  }
  TALLY_CHECK(reserved == core.reserved && core.has(0), "blocks set aside", reserved, core.reserved,
              core.ledger.available());
}

}  // namespace

void check_core(const Core& core) {
  check_list(core, core.running, true);
  check_list(core, core.waiting, false);
  TALLY_CHECK(core.seats_taken() <= core.seats, "S1: sequences", core.running.size(), core.seats_unborn,
              core.seats);
  size_t unborn = 0, unborn_running = 0;
  for (const Sequence* seq : core.waiting) unborn += seq->unborn.size();
  for (const Sequence* seq : core.running) unborn_running += seq->unborn.size();
  TALLY_CHECK(unborn_running == core.seats_unborn, "S1: seats kept for forks", unborn_running,
              core.seats_unborn);
  TALLY_CHECK(core.running.size() + core.waiting.size() + unborn + unborn_running + core.gone.size() ==
                  core.sequences.size(),
              "S2: running, waiting, unborn, ended, known", core.running.size(), core.waiting.size(),
              unborn + unborn_running, core.gone.size(), core.sequences.size());
  check_reserve(core);
  uint64_t live = 0;
  for (const auto& tenant : core.tenants) live += tenant->live;
  TALLY_CHECK(live + core.gone.size() == core.sequences.size(), "sequences of tenants", live,
              core.gone.size(), core.sequences.size());
  uint32_t never_scheduled = 0, rows = 0, logits = 0;
  uint64_t waiting_tokens = 0;
  for (const Sequence* seq : core.waiting) {
    if (seq->state != SeqState::kWaiting) continue;
    never_scheduled += 1 + static_cast<uint32_t>(seq->unborn.size());
    waiting_tokens += seq->prompt;
  }
  TALLY_CHECK(never_scheduled == core.never_scheduled && waiting_tokens == core.waiting_tokens,
              "S7: counts of the queue", never_scheduled, core.never_scheduled, waiting_tokens,
              core.waiting_tokens);
  TALLY_CHECK(never_scheduled <= uint64_t{core.config.queue_max} + core.seats, "S7: requests waiting",
              never_scheduled);
  for (const PlannedRows& group : core.plan.rows) {
    rows += group.rows, logits += group.logits;
    TALLY_CHECK(group.logits >= (group.wants_logits ? 1U : 0U) && group.logits <= group.rows,
                "rows of logits of a group", raw(group.seq), group.logits, group.rows);
  }
  TALLY_CHECK(rows <= core.config.step_tokens, "S1: rows of a step", rows, core.config.step_tokens);
  TALLY_CHECK(logits <= core.config.logits_rows_max, "S1: rows of logits of a step", logits,
              core.config.logits_rows_max);

  std::vector<const kv::BlockTable*> tables;
  for (const auto* list : {&core.running, &core.waiting}) {
    for (const Sequence* seq : *list) {
      check_sequence(core, *seq);
      tables.push_back(&seq->table);
      check_unborn(core, *seq, tables);
    }
  }
  for (const Sequence* seq : core.gone) {
    TALLY_CHECK(seq->state == SeqState::kEnded && seq->table.empty(), "an ended sequence holds blocks",
                raw(seq->id));
  }
  tables.push_back(&core.adoption.path);
  tables.push_back(&core.adoption.taken);
  core.ledger.check(tables);
  if (tables.empty() || (core.running.empty() && core.waiting.empty())) {
    const kv::LedgerStats stats = core.ledger.stats();
    TALLY_CHECK(stats.held == 0 && stats.both == 0, "L7: blocks owned at rest", stats.held, stats.both);
  }
}

}  // namespace tally::sched
