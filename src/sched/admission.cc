// From waiting to running: prefix match, deferral, does it fit, who may pass whom.

#include "base/check.h"
#include "sched/core.h"

#include <algorithm>

namespace tally::sched {

kv::BlockKey block_key(const Core& core, const Sequence& seq, kv::Handle parent, uint32_t block) {
  const auto ids = std::span(seq.tokens).subspan(size_t{block} * core.block_tokens, core.block_tokens);
  return {parent, &seq.space, ids};
}

namespace {

// May this sequence put blocks into the index, and go on from those it has?
bool chains(const Core& core, const Sequence& seq) {
  return core.ledger.prefix_cache() && !core.reserves() && !seq.is_beam() &&
         (seq.table.empty() || seq.epoch == core.ledger.epoch());
}

}  // namespace

// The entries that continue the sequence's table, into core.path. Tokens whose rows have logits are never
// taken from the index: they are computed.
void match_prefix(Core& core, Sequence& seq) {
  core.path.clear();
  if (!chains(core, seq)) return;
  extend_chain(core, seq);
  TALLY_CHECK(seq.chain.size() == seq.table.size(), "a waiting sequence holds full blocks only", raw(seq.id),
              seq.chain.size(), seq.table.size());
  kv::Handle parent = seq.chain.empty() ? kv::kRoot : seq.chain.back();
  const uint32_t full = seq.reusable() / core.block_tokens;
  for (uint32_t block = seq.table.size(); block < full; ++block) {
    const auto entry = core.ledger.find(block_key(core, seq, parent, block));
    if (!entry) return;
    core.path.push_back(*entry);
    parent = *entry;
  }
}

namespace {

// Is the block after the match being computed now by a running prefill of the same namespace?
bool is_deferred(const Core& core, const Sequence& seq) {
  if (!chains(core, seq)) return false;
  const size_t start = (seq.table.size() + core.path.size()) * core.block_tokens;
  const size_t end = start + core.block_tokens;
  if (end > seq.reusable()) return false;
  const auto same = [&](const Sequence& other, size_t from, size_t to) {
    const auto a = seq.tokens.begin(), b = other.tokens.begin();
    return std::equal(a + static_cast<ptrdiff_t>(from), a + static_cast<ptrdiff_t>(to),
                      b + static_cast<ptrdiff_t>(from));
  };
  return std::ranges::any_of(core.running, [&](const Sequence* producer) {
    return producer->state == SeqState::kPrefilling && chains(core, *producer) && producer->computed < end &&
           producer->known() >= end && producer->space == seq.space && same(*producer, start, end) &&
           same(*producer, 0, start);
  });
}

}  // namespace

uint64_t promised_blocks(const Core& core) {
  if (core.reserves()) return 0;
  uint64_t sum = 0;
  for (const Sequence* seq : core.running) {
    if (seq->state == SeqState::kPrefilling) sum += core.blocks_for(seq->known()) - seq->table.size();
  }
  return sum;
}

namespace {

// The whole known text must fit, and the watermark beyond it; nothing is reserved for output.
bool fits(const Core& core, const Sequence& seq) {
  if (core.reserves()) return core.has(reservation_blocks(core) * (1 + uint64_t{seq.unborn.size()}));
  uint64_t cached_on_path = 0;
  for (const kv::Handle entry : core.path) cached_on_path += core.ledger.owners(entry) == 0 ? 1 : 0;
  const uint64_t missing = core.blocks_for(seq.known()) - seq.table.size() - core.path.size();
  const uint64_t watermark = core.running.empty() ? 0 : core.watermark;
  const uint64_t margin = seq.state == SeqState::kPreempted ? 2 * watermark : 1 + watermark;
  const uint64_t aside = blocks_to_set_aside(core, seq);
  const uint64_t for_choices = aside > 0 ? aside : seq.unborn.size();
  return core.has(missing + margin + for_choices + cached_on_path + promised_blocks(core));
}

// Where the match ends inside a block: copies the rows that some entry has in common with the text. Returns
// their number.
uint32_t take_partial_hit(Core& core, Sequence& seq, Tick now) {
  if (!chains(core, seq) || !core.has(1)) return 0;
  const uint32_t left = std::min(seq.reusable() - seq.computed, core.block_tokens);
  const kv::Handle parent = seq.chain.empty() ? kv::kRoot : seq.chain.back();
  const auto ids = std::span(seq.tokens).subspan(seq.computed, left);
  const auto found = core.ledger.find_partial({parent, &seq.space, ids});
  if (!found || found->rows * kPartialShare < core.block_tokens) return 0;
  const auto copy = core.ledger.copy_rows(found->entry, found->rows, now);
  if (!copy) return 0;
  seq.table.push(*copy);
  seq.computed += found->rows;
  core.plan.copies.push_back({found->entry.id, copy->id});
  ++core.totals.copied_blocks;
  core.count(Branch::kPartialHit);
  return found->rows;
}

// A prompt of whole blocks that are all in the index: of the last block, rows are computed again, at least
// the last token's for its logits.
void count_full_hit(Core& core, const Sequence& seq) {
  const uint32_t last = (seq.known() - 1) / core.block_tokens;
  if (!chains(core, seq) || seq.known() % core.block_tokens != 0 || seq.chain.size() != last) return;
  const kv::Handle parent = seq.chain.empty() ? kv::kRoot : seq.chain.back();
  if (core.ledger.find(block_key(core, seq, parent, last)))
    core.totals.cached_recomputed_tokens += seq.remaining();
}

// Owns the matched path, before anything can be evicted, and makes the sequence run.
void admit(Core& core, Sequence& seq, Tick now) {
  const bool returns = seq.state == SeqState::kPreempted;
  if (seq.table.empty()) seq.epoch = core.ledger.epoch();
  for (const kv::Handle entry : core.path) {
    core.ledger.hit(entry, now);
    seq.table.push(entry);
    seq.chain.push_back(entry);
  }
  uint32_t hit_tokens = static_cast<uint32_t>(core.path.size()) * core.block_tokens;
  seq.computed += hit_tokens;
  hit_tokens += take_partial_hit(core, seq, now);
  seq.tenant->served += seq.remaining();
  if (core.reserves()) take_reservation(core, seq, now);
  set_aside(core, seq);
  core.seats_unborn += static_cast<uint32_t>(seq.unborn.size());
  seq.stats.blocks_peak = std::max(seq.stats.blocks_peak, seq.table.size());
  if (returns) {
    if (hit_tokens > 0) core.count(Branch::kReturnHit);
    seq.immune = kImmuneTokens;
  } else {
    // Counted once, by the attempt that succeeded.
    seq.stats.cached_tokens = hit_tokens;
    // What is scored is not looked for.
    if (core.ledger.prefix_cache())
      core.totals.prefix_queries_tokens += seq.has_scores_left() ? seq.reusable() : seq.prompt;
    core.totals.prefix_hits_tokens += hit_tokens;
    count_full_hit(core, seq);
    core.never_scheduled -= 1 + static_cast<uint32_t>(seq.unborn.size());
    core.waiting_tokens -= seq.prompt;
  }
  seq.passes = 0;
  seq.blocked_since.reset();
  seq.state = SeqState::kPrefilling;
  remove_ordered(core.waiting, seq);
  insert_ordered(core.running, seq);
}

// Nothing runs and the first in line does not fit: it fits by the door's rule once the preempted ones behind
// it give up what they still hold.
void admit_by_force(Core& core, Sequence& seq, Tick now) {
  core.count(Branch::kForced);
  match_prefix(core, seq);
  admit(core, seq, now);
  const uint32_t missing = core.reserves() ? 0 : core.blocks_for(seq.known()) - seq.table.size();
  for (size_t i = core.waiting.size(); i-- > 0 && !core.has(missing);) {
    if (core.waiting[i]->table.empty()) continue;
    core.count(Branch::kForcedTake);
    preempt(core, *core.waiting[i], seq, missing, now);
  }
  TALLY_CHECK(core.has(missing), "S4: what the door let in does not fit alone: sequence, missing, available",
              raw(seq.id), missing, core.ledger.available());
}

// May later ones still pass the blocked head of the line?
bool door_open(Core& core, const Sequence& head, Tick now) {
  if (head.passes >= kPassesMax) {
    core.count(Branch::kDoorClosedByCount);
    return false;
  }
  if (now - *head.blocked_since >= kPassTicksMax) {
    core.count(Branch::kDoorClosedByTime);
    return false;
  }
  return true;
}

void count_admission(Core& core, const Sequence& seq, bool alone) {
  const bool returns = seq.state == SeqState::kPreempted;
  if (alone) {
    core.count(returns ? Branch::kReturnedAlone : Branch::kAdmittedAlone);
  } else {
    core.count(returns ? Branch::kReturnedBeside : Branch::kAdmittedBeside);
  }
}

}  // namespace

void extend_chain(Core& core, Sequence& seq) {
  if (!chains(core, seq)) return;
  const size_t before = seq.chain.size();
  while (!seq.chain.empty() && !core.ledger.is_entry(seq.chain.back())) seq.chain.pop_back();
  if (seq.chain.size() < before) core.count(Branch::kChainRestored);
  for (uint32_t block = static_cast<uint32_t>(seq.chain.size()); block < seq.computed / core.block_tokens;
       ++block) {
    const kv::Handle parent = block == 0 ? kv::kRoot : seq.chain.back();
    seq.chain.push_back(core.ledger.register_block(seq.table[block], block_key(core, seq, parent, block)));
  }
}

namespace {

// Orders the line from `from` on: in turn between tenants, by rank within one.
void take_turns(Core& core, size_t from) {
  if (core.tenants.size() < 2) return;
  std::sort(core.line.begin() + static_cast<ptrdiff_t>(from), core.line.end(),
            [](const Sequence* a, const Sequence* b) {
              return a->tenant->served != b->tenant->served ? a->tenant->served < b->tenant->served
                                                            : a->before(*b);
            });
}

}  // namespace

void admit_waiting(Core& core, Tick now) {
  core.totals.deferred = 0;
  Sequence* head = nullptr;  // the first that does not fit
  const bool batch_closed = core.config.batching == Batching::kStatic && !core.running.empty();
  core.line.assign(core.waiting.begin(), core.waiting.end());
  take_turns(core, 0);
  for (size_t i = 0; i < core.line.size(); ++i) {
    Sequence& seq = *core.line[i];
    if (seq.held) {
      ++core.totals.deferred;
      continue;
    }
    if (core.seats_taken() + 1 + seq.unborn.size() > core.seats) {
      core.count(Branch::kNoSeat);
      break;
    }
    if (head != nullptr && !door_open(core, *head, now)) break;
    if (batch_closed && seq.state == SeqState::kWaiting) {
      core.count(Branch::kBatchClosed);
      continue;
    }
    match_prefix(core, seq);
    if (is_deferred(core, seq)) {
      core.count(Branch::kDeferred);
      ++core.totals.deferred;
    } else if (fits(core, seq)) {
      if (head != nullptr) {
        core.count(Branch::kPassed);
        ++head->passes;
      }
      count_admission(core, seq, core.running.empty());
      admit(core, seq, now);
      take_turns(core, i + 1);
    } else {
      core.count(Branch::kBlocked);
      if (head == nullptr) head = &seq;
      if (!seq.blocked_since) seq.blocked_since = now;
    }
  }
  if (!core.running.empty()) return;
  const auto first = std::ranges::find_if(core.waiting, [](const Sequence* seq) { return !seq->held; });
  if (first != core.waiting.end()) admit_by_force(core, **first, now);
}

}  // namespace tally::sched
