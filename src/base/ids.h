#pragma once
// Strong ids, so that they cannot be swapped. `raw(id)` gives the number.

#include <cstdint>
#include <type_traits>

namespace tally::base {

enum class TokenId : int32_t {};   // 0 .. vocabulary - 1
enum class SeqId : uint64_t {};    // one sequence (a choice of a request); never reused in a process
enum class BlockId : uint32_t {};  // 0 .. pool blocks - 1; addresses the same index in every layer
enum class LayerIdx : uint32_t {};

template <class Id>
constexpr auto raw(Id id) {
  return static_cast<std::underlying_type_t<Id>>(id);
}

// Monotonic microseconds since an arbitrary start. Pure rooms are given ticks, they never ask for the time.
using Tick = int64_t;

}  // namespace tally::base

namespace tally {
using base::BlockId;
using base::LayerIdx;
using base::raw;
using base::SeqId;
using base::Tick;
using base::TokenId;
}  // namespace tally
