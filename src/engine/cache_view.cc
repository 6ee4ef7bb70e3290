// The loop's answers to readers of the cache; under the same lock as the scheduler.

#include "engine/cache_view.h"

#include "engine/loop.h"

namespace tally::engine {
namespace {

KvEvent::Kind kind_of(kv::Event::Kind kind) {
  switch (kind) {
    case kv::Event::Kind::kBlockStored:
      return KvEvent::Kind::kBlockStored;
    case kv::Event::Kind::kBlockRemoved:
      return KvEvent::Kind::kBlockRemoved;
    case kv::Event::Kind::kAllBlocksCleared:
      break;
  }
  return KvEvent::Kind::kAllBlocksCleared;
}

}  // namespace

KvEvents Loop::kv_events(uint64_t since, size_t max) const {
  const std::lock_guard lock(mailbox_->mutex);
  const kv::EventRing& ring = ledger_.events();
  KvEvents result;
  result.first = ring.first(), result.last = ring.last();
  // A number of the future is one of an engine that ran before this one.
  result.dropped = since + 1 < result.first || since > result.last;
  uint64_t number = result.dropped ? result.first : since + 1;
  for (; number <= result.last && result.events.size() < max; ++number) {
    const kv::Event& e = ring[number];
    const std::span<const TokenId> ids = ring.ids(number);
    result.events.push_back({.sequence = number,
                             .kind = kind_of(e.kind),
                             .hash = e.hash,
                             .parent_hash = e.parent_hash,
                             .space = e.space,
                             .block = raw(e.block.id),
                             .has_parent = e.parent != kv::kRoot,
                             .tokens = {ids.begin(), ids.end()}});
  }
  return result;
}

BlockMap Loop::block_map() const {
  BlockMap map;
  map.block_tokens = parts_.info.block_tokens;
  map.blocks.resize(parts_.info.blocks);
  const std::lock_guard lock(mailbox_->mutex);
  for (uint32_t id = 0; id < map.blocks.size(); ++id) {
    const kv::BlockInfo info = ledger_.info(BlockId{id});
    BlockMap::Block& block = map.blocks[id];
    block.registered = info.state == kv::BlockState::kCached || info.state == kv::BlockState::kBoth;
    if (info.owners > 0) block.state = BlockMap::State::kHeld;
    if (info.state == kv::BlockState::kCached) block.state = BlockMap::State::kCached;
    block.owners = info.owners, block.tokens = info.fill, block.age_steps = info.age_steps;
  }
  for (const auto& [seq, sequence] : sequences_) {
    uint32_t tokens = 0;
    for (const BlockId id : scheduler_.table(seq)) tokens += map.blocks[raw(id)].tokens;
    if (tokens > 0) map.sequence_tokens.push_back(tokens);
  }
  return map;
}

}  // namespace tally::engine
