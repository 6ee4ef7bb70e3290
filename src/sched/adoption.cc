// Blocks that come from elsewhere than a forward pass: taken for a waiting prompt, filled by the caller, and put
// into the index, where admission finds them as it finds any other.

#include "base/check.h"
#include "sched/core.h"

#include <algorithm>

namespace tally::sched {

void adopt_blocks(Core& core, Sequence& seq, uint32_t most, Tick now) {
  Adoption& a = core.adoption;
  TALLY_CHECK(!core.in_flight && a.path.empty() && a.taken.empty(), "adoption beside a step or another",
              raw(seq.id), raw(a.seq));
  TALLY_CHECK(seq.state == SeqState::kWaiting, "blocks for one that does not wait", raw(seq.id));
  match_prefix(core, seq);
  a.seq = seq.id, a.epoch = core.ledger.epoch();
  for (const kv::Handle entry : core.path) {  // before taking can evict them
    core.ledger.hit(entry, now);
    a.path.push(entry);
  }
  const uint32_t full = seq.reusable() / core.block_tokens;
  most = std::min(most, full - a.path.size());
  const uint64_t needed = core.watermark + promised_blocks(core) + core.running.size();
  while (a.taken.size() < most && core.has(needed + 1)) a.taken.push(*core.ledger.take(now));
}

void index_adopted(Core& core, uint32_t good, Tick now) {
  Adoption& a = core.adoption;
  TALLY_CHECK(good <= a.taken.size(), "adopted blocks, and those that were taken", good, a.taken.size());
  const Sequence& seq = core.find(a.seq);
  if (a.epoch == core.ledger.epoch()) {  // else the index was cleared meanwhile
    kv::Handle parent = a.path.empty() ? kv::kRoot : a.path.back();
    for (uint32_t i = 0; i < good; ++i) {
      core.ledger.commit_rows(a.taken[i], core.block_tokens);
      parent = core.ledger.register_block(a.taken[i], block_key(core, seq, parent, a.path.size() + i));
    }
  }
  for (kv::BlockTable* table : {&a.taken, &a.path}) {
    while (!table->empty()) {
      core.ledger.drop(table->back(), now);
      table->pop();
    }
  }
}

}  // namespace tally::sched
