#pragma once
// The states of a block and the moves between them: the table of ledger.h as names.

#include <cstddef>
#include <cstdint>

namespace tally::kv {

enum class BlockState : uint8_t { kFree, kHeld, kCached, kBoth };

// One row of the table. Tests see that each fires.
enum class Move : uint8_t {
  kTake,
  kShareHeld,
  kShareBoth,
  kHitCached,
  kHitBoth,
  kRegister,
  kDropHeld,
  kDropHeldLast,
  kDropBoth,
  kDropBothLast,
  kEvict,
  kUnregisterBoth,
  kUnregisterCached,
};
inline constexpr size_t kMoveCount = 13;

}  // namespace tally::kv
