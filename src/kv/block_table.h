#pragma once
// A sequence's blocks, in order of position: what the ledger's owners counts are counts of.

#include "base/ids.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tally::kv {

// A block and which of its lives is meant: a handle whose generation has passed is stale, and using it is a
// CHECK.
struct Handle {
  BlockId id{};
  uint64_t generation = 0;
  friend bool operator==(const Handle&, const Handle&) = default;
};
inline constexpr Handle kRoot{BlockId{UINT32_MAX}, 0};  // the parent of a sequence's first block

// The blocks of one sequence, in order of position. Index i holds positions [i * block_tokens, (i + 1) *
// block_tokens).
class BlockTable {
 public:
  // Makes room, so that growing to `blocks` allocates nothing.
  void reserve(size_t blocks) { ids_.reserve(blocks), generations_.reserve(blocks); }
  void push(Handle h) { ids_.push_back(h.id), generations_.push_back(h.generation); }
  void pop() { ids_.pop_back(), generations_.pop_back(); }
  Handle operator[](size_t i) const { return {ids_[i], generations_[i]}; }
  Handle back() const { return {ids_.back(), generations_.back()}; }
  uint32_t size() const { return static_cast<uint32_t>(ids_.size()); }
  bool empty() const { return ids_.empty(); }
  std::span<const BlockId> ids() const { return ids_; }

 private:
  std::vector<BlockId> ids_;
  std::vector<uint64_t> generations_;
};

}  // namespace tally::kv
