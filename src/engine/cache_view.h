#pragma once
// What can be seen of the KV cache from outside: its blocks at one moment, and the changes of what can be
// found in it.

#include "base/ids.h"

#include <cstdint>
#include <vector>

namespace tally::engine {

// A change of the set of blocks that can be found again by their tokens.
struct KvEvent {
  enum class Kind : uint8_t { kBlockStored, kBlockRemoved, kAllBlocksCleared };
  uint64_t sequence = 0;  // from 1, without gaps
  Kind kind = Kind::kBlockStored;
  uint64_t hash = 0, parent_hash = 0;  // of the namespace and every id up to the block's end
  uint64_t space = 0;                  // of the namespace (tenant and salt)
  uint32_t block = 0;
  bool has_parent = false;           // kBlockStored: false for the first block of a prompt
  std::vector<TokenId> tokens = {};  // kBlockStored
};
struct KvEvents {
  uint64_t first = 1, last = 0;  // what the ring holds; first = last + 1: nothing
  bool dropped = false;          // what came after the reader's number is not all there any more
  std::vector<KvEvent> events;   // ascending
};

// The pool at one moment, by block id.
struct BlockMap {
  enum class State : uint8_t { kFree, kHeld, kCached };  // held: by one sequence or more; cached: by none
  struct Block {
    State state = State::kFree;
    bool registered = false;  // can be found by its tokens
    uint32_t owners = 0, tokens = 0;
    uint64_t age_steps = 0;  // since it was taken, hit or given up the last time
  };
  uint32_t block_tokens = 0;
  std::vector<Block> blocks;
  std::vector<uint32_t> sequence_tokens;  // rows written, of each sequence that holds blocks
};

// Prefix blocks kept in a file (--kv-disk), since start.
struct KvDiskStats {
  uint64_t slots = 0, used = 0;                     // blocks in the file
  uint64_t read_blocks = 0, written_blocks = 0;
  uint64_t dropped_blocks = 0, damaged_blocks = 0;  // not written as the writer was behind; ignored when read
  uint64_t refused_blocks = 0;                      // there, but quicker to compute
  uint64_t read_bytes = 0, written_bytes = 0;
  double read_s = 0;
  double read_bytes_per_s = 0, prefill_rows_per_s = 0;  // what decides; 0: not known yet
};

}  // namespace tally::engine
