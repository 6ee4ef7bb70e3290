// Blocks for growth when none is free and nothing cached can go: taken from the tail of a later sequence,
// which waits and computes those rows again. Only as many blocks as needed.

#include "base/check.h"
#include "sched/core.h"

#include <algorithm>

namespace tally::sched {

namespace {

// Would dropping its blocks free one now?
bool frees_something(const Core& core, const Sequence& seq) {
  for (uint32_t i = seq.table.size(); i-- > 0;) {
    if (core.ledger.owners(seq.table[i]) == 1) return true;
  }
  return false;
}

// The one to give up a block for `by`: first those that wait and still hold blocks, then running ones, latest
// first. Never the oldest, never one before `by`, an immune one only when there is no other. Null: `by` is
// itself the last in order.
Sequence* choose_victim(Core& core, const Sequence& by) {
  for (size_t i = core.waiting.size(); i-- > 0;) {
    if (core.waiting[i]->table.empty()) continue;
    if (frees_something(core, *core.waiting[i])) {
      core.count(Branch::kVictimWaiting);
      return core.waiting[i];
    }
    core.count(Branch::kSharedSpared);
  }
  Sequence* immune = nullptr;
  for (size_t i = core.running.size(); i-- > 1;) {
    Sequence& seq = *core.running[i];
    if (&seq == &by) {
      if (by.immune > 0) break;
      core.count(Branch::kOwnVictim);
      return nullptr;
    }
    if (seq.table.empty() || seq.is_beam()) continue;
    if (!frees_something(core, seq)) {
      core.count(Branch::kSharedSpared);
      continue;
    }
    if (seq.immune == 0) {
      if (immune != nullptr) core.count(Branch::kImmuneSpared);
      core.count(Branch::kVictimRunning);
      return &seq;
    }
    if (immune == nullptr) immune = &seq;
  }
  core.count(immune != nullptr ? Branch::kVictimImmune : Branch::kOwnVictim);
  return immune;
}

}  // namespace

void preempt(Core& core, Sequence& victim, const Sequence& by, uint32_t target, Tick now) {
  const uint32_t computed_before = victim.computed;
  if (victim.state != SeqState::kPreempted) {
    core.seats_unborn -= static_cast<uint32_t>(victim.unborn.size());
    release_aside(core, victim);
  }
  uint32_t blocks = 0;
  while (!victim.table.empty() && !core.has(target)) {
    drop_tail(core, victim, now);
    ++blocks;
  }
  // What waits holds full blocks only: where the blocks set aside for beams were enough, the last one may not
  // be.
  for (; victim.table.size() > victim.computed / core.block_tokens; ++blocks) drop_tail(core, victim, now);
  victim.computed = std::min(victim.computed, victim.table.size() * core.block_tokens);
  victim.chain.resize(std::min<size_t>(victim.chain.size(), victim.table.size()));
  if (victim.state != SeqState::kPreempted) {
    remove_ordered(core.running, victim);
    insert_ordered(core.waiting, victim);
    victim.state = SeqState::kPreempted;
    ++victim.stats.preemptions;
    ++core.totals.preemptions;
  }
  const uint32_t tokens = computed_before - victim.computed;
  core.totals.preempted_tokens += tokens;
  core.plan.preempted.push_back({victim.id, by.id, blocks, tokens});
}

namespace {

// One block that `seq` may take, if it must be from a later sequence. Beams have theirs set aside.
bool make_room(Core& core, Sequence& seq, Tick now) {
  if (seq.is_beam() || core.has(1)) return true;
  Sequence* victim = choose_victim(core, seq);
  if (victim == nullptr) return false;
  preempt(core, *victim, seq, 1, now);
  return true;
}

}  // namespace

bool grow(Core& core, Sequence& seq, Tick now) {
  if (!make_room(core, seq, now)) return false;
  const auto block = core.ledger.take(now);
  TALLY_CHECK(block.has_value(), "a preemption frees a block or does not happen", raw(seq.id));
  take_from_reserve(core, seq);
  if (seq.table.empty()) seq.epoch = core.ledger.epoch();
  seq.table.push(*block);
  seq.stats.blocks_peak = std::max(seq.stats.blocks_peak, seq.table.size());
  return true;
}

bool own_tail(Core& core, Sequence& seq, Tick now) {
  const kv::Handle tail = seq.table[seq.computed / core.block_tokens];
  if (core.ledger.owners(tail) == 1) return true;
  if (!make_room(core, seq, now)) return false;
  // Whoever else has this block has nothing of its own behind it: no preemption took it away.
  const auto copy = core.ledger.copy_on_write(tail, now);
  TALLY_CHECK(copy.has_value() && seq.table.back() == tail, "a copy of the last block", raw(seq.id));
  take_from_reserve(core, seq);
  seq.table.pop();
  seq.table.push(*copy);
  core.plan.copies.push_back({tail.id, copy->id});
  ++core.totals.copied_blocks;
  core.count(Branch::kCopied);
  return true;
}

void clear_standstill(Core& core, Sequence& oldest, Tick now) {
  core.count(Branch::kStandstill);
  // Blocks that the others share with each other come free only when the last of them has gone: no one is
  // spared.
  while (!core.has(1)) {
    Sequence* victim = nullptr;
    for (auto* list : {&core.waiting, &core.running}) {
      for (size_t i = list->size(); victim == nullptr && i-- > 0;) {
        if ((*list)[i] != &oldest && !(*list)[i]->table.empty()) victim = (*list)[i];
      }
    }
    TALLY_CHECK(victim != nullptr, "S4: the pool is too small for one sequence: sequence, tokens, its blocks",
                raw(oldest.id), oldest.known(), oldest.table.size());
    // Where beams run there is a row, and no standstill.
    TALLY_CHECK(!victim->is_beam(), "a beam in the way of the oldest", raw(victim->id), raw(oldest.id));
    preempt(core, *victim, oldest, 1, now);
  }
}

}  // namespace tally::sched
