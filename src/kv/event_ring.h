#pragma once
// The last changes of the prefix index, numbered, for readers that follow the cache from outside.

#include "base/ids.h"
#include "kv/block_table.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tally::kv {

struct Event {
  enum class Kind : uint8_t { kBlockStored, kBlockRemoved, kAllBlocksCleared };
  Kind kind = Kind::kBlockStored;
  Handle block{}, parent = kRoot;      // kAllBlocksCleared: neither; kBlockRemoved: no parent
  uint64_t hash = 0, parent_hash = 0;  // chained over namespace and ids, as the index has them
  uint64_t space = 0;                  // hash of the namespace
};

// Keeps the last `capacity` events (none: nothing is numbered); numbers grow from 1 without gaps. Allocates
// at construction only.
class EventRing {
 public:
  EventRing(uint32_t capacity, uint32_t block_tokens);
  static size_t bytes(uint32_t capacity, uint32_t block_tokens);

  // Appends; the oldest gives way. `ids`: of a stored block, block_tokens of them, else none.
  void add(const Event& event, std::span<const TokenId> ids);

  uint64_t last() const { return last_; }  // 0: nothing has happened yet
  uint64_t first() const { return last_ - size() + 1; }
  uint64_t size() const { return last_ < events_.size() ? last_ : events_.size(); }
  // Requires: first() <= number <= last().
  const Event& operator[](uint64_t number) const;
  // The ids of a stored block; else empty. Requires: as above.
  std::span<const TokenId> ids(uint64_t number) const;

 private:
  size_t place(uint64_t number) const;

  uint32_t block_tokens_;
  uint64_t last_ = 0;
  std::vector<Event> events_;  // number n at (n - 1) % capacity
  std::vector<TokenId> ids_;   // [capacity, block_tokens], valid where stored
};

}  // namespace tally::kv
