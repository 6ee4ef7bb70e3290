// Who computes what in this step: one row for each decoding sequence that has its block, the rest of the
// budget to prefills.

#include "base/check.h"
#include "sched/core.h"

#include <algorithm>

namespace tally::sched {

namespace {

uint32_t rows_planned(const Core& core) {
  uint32_t sum = 0;
  for (const PlannedRows& group : core.plan.rows) sum += group.rows;
  return sum;
}

uint32_t logits_planned(const Core& core) {
  uint32_t sum = 0;
  for (const PlannedRows& group : core.plan.rows) sum += group.logits;
  return sum;
}

// Rows with logits among [position, end): from the first that scores, or the one that gives a token.
struct LogitsRows {
  uint32_t logits = 0, scores = 0;
};
LogitsRows logits_of(const Sequence& seq, uint32_t position, uint32_t end) {
  const uint32_t first = std::max(seq.score_next, position + 1), last = std::min(end, seq.prompt - 1);
  if (seq.has_scores_left() && first <= last) return {end - first + 1, last - first + 1};
  return {end == seq.known() && !seq.prompt_only ? 1U : 0U, 0};
}

// Adds `rows` to the sequence's group in the plan. Requires: their blocks are in its table.
void add_rows(Core& core, Sequence& seq, uint32_t rows) {
  size_t at = 0;
  while (at < core.planned.size() && core.planned[at] != &seq) ++at;
  if (at == core.planned.size()) {
    core.planned.push_back(&seq);
    core.plan.rows.push_back(
        {.seq = seq.id, .position = seq.computed, .decode = seq.state == SeqState::kDecoding});
    if (!seq.scheduled) core.plan.admitted.push_back(seq.id);
    seq.scheduled = true;
  }
  PlannedRows& group = core.plan.rows[at];
  group.rows += rows;
  const uint32_t end = group.position + group.rows;
  group.recomputed = std::min(end, std::max(seq.computed_peak, group.position)) - group.position;
  group.wants_logits = end == seq.known() && !seq.prompt_only;
  const LogitsRows logits = logits_of(seq, group.position, end);
  group.logits = logits.logits, group.scores = logits.scores;
  if (group.wants_logits && !seq.unborn.empty()) {
    group.begins_at = static_cast<uint32_t>(core.plan.begins.size());
    group.begins = static_cast<uint32_t>(seq.unborn.size());
    for (const Sequence* child : seq.unborn) core.plan.begins.push_back(child->id);
  }
  for (uint32_t position = group.position; position < end;
       position += core.block_tokens - position % core.block_tokens) {
    core.ledger.expect_writable(seq.table[position / core.block_tokens], position % core.block_tokens);
  }
}

uint32_t rows_of(const Core& core, const Sequence& seq) {
  for (size_t i = 0; i < core.planned.size(); ++i) {
    if (core.planned[i] == &seq) return core.plan.rows[i].rows;
  }
  return 0;
}

// How many of `rows` more rows the rows with logits allow: one is each prefill's own, others are what is
// left.
uint32_t cut_to_logits(Core& core, const Sequence& seq, uint32_t start, uint32_t rows) {
  const uint32_t own = std::max(1U, logits_of(seq, seq.computed, start).logits);
  const uint32_t wanted = logits_of(seq, seq.computed, start + rows).logits;
  if (wanted <= own + core.logits_free) return rows;
  core.count(Branch::kScoresShort);
  return rows - (wanted - own - core.logits_free);
}

void take_logits(Core& core, const Sequence& seq, uint32_t start, uint32_t rows) {
  const uint32_t own = std::max(1U, logits_of(seq, seq.computed, start).logits);
  core.logits_free -= std::max(own, logits_of(seq, seq.computed, start + rows).logits) - own;
}

// Gives a prefill up to `rows` more rows, fewer when blocks or rows with logits run out: prefill growth
// preempts no one. Returns those given.
uint32_t give_prefill(Core& core, Sequence& seq, uint32_t rows, Tick now) {
  const uint32_t start = seq.computed + rows_of(core, seq);
  rows = cut_to_logits(core, seq, start, std::min(rows, seq.known() - start));
  if (rows == 0) return 0;
  while (seq.table.size() < core.blocks_for(start + rows) && core.has(1)) grow(core, seq, now);
  const uint64_t room = uint64_t{seq.table.size()} * core.block_tokens;
  if (room < start + uint64_t{rows}) {
    core.count(Branch::kPrefillShort);
    rows = static_cast<uint32_t>(room - start);
  }
  if (rows == 0) return 0;
  take_logits(core, seq, start, rows);
  add_rows(core, seq, rows);
  return rows;
}

// A block that a decoding sequence may write its row into: a new one, or its last.
bool give_block(Core& core, Sequence& seq, Tick now) {
  return seq.table.size() < core.blocks_for(seq.known()) ? grow(core, seq, now) : own_tail(core, seq, now);
}

bool someone_prefills(const Core& core) {
  return std::ranges::any_of(core.running,
                             [](const Sequence* seq) { return seq->state == SeqState::kPrefilling; });
}

}  // namespace

void plan_decodes(Core& core, Tick now) {
  if (core.config.batching == Batching::kStatic && someone_prefills(core)) return;
  // A victim stands after the one that grows, so it has no row yet, and the elements before i do not move.
  for (size_t i = 0; i < core.running.size(); ++i) {
    Sequence& seq = *core.running[i];
    if (seq.state != SeqState::kDecoding) continue;
    TALLY_CHECK(seq.remaining() == 1, "a decoding sequence has one row to compute", raw(seq.id),
                seq.remaining());
    if (give_block(core, seq, now)) add_rows(core, seq, 1);
  }
}

void plan_prefills(Core& core, Tick now) {
  core.order.clear();
  for (Sequence* seq : core.running) {
    if (seq->state == SeqState::kPrefilling) core.order.push_back(seq);
  }
  const uint32_t decode_rows = rows_planned(core);
  TALLY_CHECK(decode_rows <= core.config.step_tokens, "S1: rows of a step", decode_rows,
              core.config.step_tokens);
  // Every prefill may come to its end.
  core.logits_free =
      core.config.logits_rows_max - logits_planned(core) - static_cast<uint32_t>(core.order.size());
  if (core.order.empty() || decode_rows == core.config.step_tokens) return;
  uint32_t left = prefill_rows_max(core, decode_rows);
  if (left == 0) return;

  // The oldest has a quarter for itself, so that short ones cannot keep it from moving; then shortest
  // remaining first.
  left -= give_prefill(core, *core.order.front(), (left + 3) / 4, now);
  std::sort(core.order.begin(), core.order.end(), [](const Sequence* a, const Sequence* b) {
    return a->remaining() != b->remaining() ? a->remaining() < b->remaining() : a->before(*b);
  });
  for (Sequence* seq : core.order) {
    if (left == 0) break;
    left -= give_prefill(core, *seq, left, now);
  }
}

void plan_standstill(Core& core, Tick now) {
  Sequence& oldest = *core.running.front();
  clear_standstill(core, oldest, now);
  if (oldest.state == SeqState::kDecoding) {
    TALLY_CHECK(give_block(core, oldest, now), "S3: no progress", raw(oldest.id));
    add_rows(core, oldest, 1);
  } else {
    give_prefill(core, oldest, core.config.step_tokens, now);
  }
  TALLY_CHECK(!core.plan.rows.empty(), "S3: no progress", raw(oldest.id));
}

}  // namespace tally::sched
