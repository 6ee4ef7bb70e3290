// The choices of one request: one prefill, then as many sequences as it has choices, which share every block
// of the prompt. A block that several own is copied by each that writes into it, but the last.
//
// Beams step together and are never preempted: the blocks they may still take are set aside when their prompt
// is admitted. So that none of those can stay with someone else, beams register nothing they generate.

#include "base/check.h"
#include "sched/core.h"

#include <algorithm>

namespace tally::sched {

namespace {

// Blocks behind the prompt's full ones belong to the choices alone.
bool is_private(const Core& core, const Sequence& seq, uint32_t block) {
  return block >= seq.prompt / core.block_tokens;
}

void copy_blocks(Core& core, const Sequence& from, Sequence& to) {
  for (uint32_t i = 0; i < core.blocks_for(from.computed); ++i) {
    core.copies_due.push_back({from.table[i].id, to.table[i].id});
    const uint32_t fill = core.ledger.info(from.table[i].id).fill;
    if (core.ledger.info(to.table[i].id).fill < fill) core.ledger.commit_rows(to.table[i], fill);
    ++core.totals.copied_blocks;
  }
}

void share_blocks(Core& core, const Sequence& from, Sequence& to) {
  for (uint32_t i = to.table.size(); i < from.table.size(); ++i) {
    core.ledger.share(from.table[i]);
    to.table.push(from.table[i]);
  }
  to.stats.blocks_peak = std::max(to.stats.blocks_peak, to.table.size());
}

void begin_one(Core& core, const Sequence& root, Sequence& child) {
  child.state = SeqState::kDecoding;
  child.scheduled = true;
  child.epoch = root.epoch;
  child.computed = child.computed_peak = root.computed;
  child.score_next = root.score_next;
  child.stats.cached_tokens = root.stats.cached_tokens;
  if (core.reserves()) {
    copy_blocks(core, root, child);
  } else {
    share_blocks(core, root, child);
    child.chain = root.chain;
  }
  insert_ordered(core.running, child);
  ++core.totals.forks;
  core.count(Branch::kForked);
}

}  // namespace

void begin_choices(Core& core, Sequence& root) {
  core.seats_unborn -= static_cast<uint32_t>(root.unborn.size());
  for (Sequence* child : root.unborn) begin_one(core, root, *child);
  root.unborn.clear();
}

void hand_over(Core& core, Sequence& seq) {
  core.count(Branch::kHeir);
  Sequence& heir = *seq.unborn.front();
  std::swap(heir.unborn, seq.unborn);
  heir.unborn.erase(heir.unborn.begin());
  std::swap(heir.table, seq.table);
  std::swap(heir.chain, seq.chain);
  std::swap(heir.state, seq.state);
  heir.computed = seq.computed, heir.computed_peak = seq.computed_peak, heir.epoch = seq.epoch;
  heir.scheduled = seq.scheduled, heir.stats = seq.stats;
  heir.score_next = seq.score_next;
  heir.immune = seq.immune, heir.passes = seq.passes, heir.blocked_since = seq.blocked_since;
  const bool runs = heir.state == SeqState::kPrefilling;
  if (runs) --core.seats_unborn;
  // The ids of a request's choices follow each other, so the place in the order is the same.
  std::vector<Sequence*>& list = runs ? core.running : core.waiting;
  const auto at = std::find(list.begin(), list.end(), &seq);
  TALLY_CHECK(at != list.end(), "sequence missing from its list", raw(seq.id));
  *at = &heir;
}

void continue_from(Core& core, Sequence& seq, const Sequence& parent, Tick now) {
  TALLY_CHECK(
      seq.is_beam() && parent.is_beam() && seq.family == parent.family && seq.computed == parent.computed,
      "beams of one request, in step", raw(seq.id), raw(parent.id));
  core.count(Branch::kBeamMoved);
  if (core.reserves()) {
    copy_blocks(core, parent, seq);
  } else {
    uint32_t same = 0;
    while (same < seq.table.size() && same < parent.table.size() && seq.table[same] == parent.table[same])
      ++same;
    while (seq.table.size() > same) drop_tail(core, seq, now);
    share_blocks(core, parent, seq);
  }
  seq.tokens.assign(parent.tokens.begin(), parent.tokens.end());
}

uint32_t reservation_blocks(const Core& core) { return core.blocks_for(core.config.model_len_max); }

void take_reservation(Core& core, Sequence& seq, Tick now) {
  const auto fill = [&](Sequence& s) {
    while (s.table.size() < reservation_blocks(core)) {
      const auto block = core.ledger.take(now);
      TALLY_CHECK(block.has_value(), "a reservation that was found to fit", raw(s.id));
      s.table.push(*block);
    }
    s.epoch = core.ledger.epoch();
    s.stats.blocks_peak = s.table.size();
  };
  fill(seq);
  for (Sequence* child : seq.unborn) fill(*child);
}

void drop_tail(Core& core, Sequence& seq, Tick now) {
  const kv::Handle block = seq.table.back();
  const bool returns = seq.is_beam() && !core.reserves() && is_private(core, seq, seq.table.size() - 1) &&
                       core.ledger.owners(block) == 1;
  core.ledger.drop(block, now);
  seq.table.pop();
  if (returns) ++seq.family->reserve, ++core.reserved;
}

void take_from_reserve(Core& core, Sequence& seq) {
  if (!seq.is_beam()) return;
  TALLY_CHECK(seq.family->reserve > 0, "beams take more blocks than were set aside", raw(seq.id));
  --seq.family->reserve, --core.reserved;
}

uint32_t blocks_to_set_aside(const Core& core, const Sequence& root) {
  if (!root.family || !root.family->beams || core.reserves()) return 0;
  const uint32_t tail = root.prompt % core.block_tokens;
  // The prompt's own tail is taken by its prefill.
  return static_cast<uint32_t>(root.family->members.size()) *
             core.blocks_for(uint64_t{root.tokens_max} - root.prompt + tail) -
         (tail > 0 ? 1U : 0U);
}

void set_aside(Core& core, Sequence& root) {
  const uint32_t blocks = blocks_to_set_aside(core, root);
  if (blocks == 0) return;
  root.family->reserve = blocks;
  core.reserved += blocks;
}

void release_aside(Core& core, Sequence& seq) {
  if (!seq.family) return;
  core.reserved -= seq.family->reserve;
  seq.family->reserve = 0;
}

}  // namespace tally::sched
