#include "serve/block_sums.h"

#include <algorithm>

namespace tally::serve {

using State = engine::BlockMap::State;

double BlockSums::waste_share() const {
  const uint64_t slots = stored_tokens + waste_tokens;
  return slots > 0 ? static_cast<double>(waste_tokens) / static_cast<double>(slots) : 0;
}

BlockSums sum_up(const engine::BlockMap& map) {
  BlockSums s;
  size_t run = 0;
  for (size_t id = 0; id < map.blocks.size(); ++id) {
    const engine::BlockMap::Block& block = map.blocks[id];
    const bool is_free = block.state == State::kFree;
    (is_free ? s.free : block.state == State::kHeld ? s.held : s.cached) += 1;
    s.registered += block.registered;
    s.shared += block.owners >= 2;
    if (block.state == State::kHeld) {
      s.stored_tokens += block.tokens;
      s.waste_tokens += map.block_tokens - block.tokens;
    }
    const bool goes_on = id > 0 && is_free == (map.blocks[id - 1].state == State::kFree);
    run = goes_on ? run + 1 : 1;
    if (!goes_on) ++(is_free ? s.free_extents : s.used_extents);
    size_t& longest = is_free ? s.longest_free : s.longest_used;
    longest = std::max(longest, run);
  }
  return s;
}

uint64_t waste_of_sequences(const engine::BlockMap& map, uint32_t size) {
  uint64_t waste = 0;
  for (const uint32_t tokens : map.sequence_tokens) waste += (size - tokens % size) % size;
  return waste;
}

}  // namespace tally::serve
