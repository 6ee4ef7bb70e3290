#pragma once
// The sums of a block map, for the pages that show it.

#include "engine/engine.h"

#include <cstddef>
#include <cstdint>

namespace tally::serve {

// Extents: runs of neighbouring ids. Blocks are taken one by one wherever they are, so extents cost nothing
// here; they tell what an allocator of contiguous ranges would have to work with.
struct BlockSums {
  size_t free = 0, held = 0, cached = 0, shared = 0, registered = 0;
  uint64_t stored_tokens = 0, waste_tokens = 0;  // of held blocks
  size_t longest_free = 0, longest_used = 0, free_extents = 0, used_extents = 0;

  double waste_share() const;  // unwritten over all slots of held blocks
};
BlockSums sum_up(const engine::BlockMap& map);

// Unwritten tokens at the ends of the sequences that hold blocks, had these `size` tokens.
uint64_t waste_of_sequences(const engine::BlockMap& map, uint32_t size);

}  // namespace tally::serve
