#include "text/word_cache.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tally::text {

WordCache::WordCache(size_t vocab_size)
    : pieces_(std::bit_ceil(std::clamp<size_t>(vocab_size * 4, 64, kPiecesMax))),
      slots_(std::make_unique<Slot[]>(pieces_)) {}

bool WordCache::find(std::string_view piece, uint64_t hash, std::vector<TokenId>& ids) const {
  const size_t set = hash % pieces_ & ~(kWays - 1);
  for (size_t way = 0; way < kWays; ++way) {
    const Slot& slot = slots_[set + way];
    if (slot.state.load(std::memory_order_acquire) != kReady) continue;
    if (slot.bytes_count != piece.size() || std::memcmp(slot.bytes.data(), piece.data(), piece.size()) != 0)
      continue;
    ids.insert(ids.end(), slot.ids.begin(), slot.ids.begin() + slot.ids_count);
    return true;
  }
  return false;
}

void WordCache::insert(std::string_view piece, uint64_t hash, std::span<const TokenId> ids) {
  if (ids.size() > kIdsMax) return;
  const size_t set = hash % pieces_ & ~(kWays - 1);
  for (size_t way = 0; way < kWays; ++way) {
    Slot& slot = slots_[set + way];
    uint8_t expected = kEmpty;
    if (!slot.state.compare_exchange_strong(expected, kBeingWritten, std::memory_order_relaxed)) continue;
    slot.bytes_count = static_cast<uint8_t>(piece.size());
    slot.ids_count = static_cast<uint8_t>(ids.size());
    std::memcpy(slot.bytes.data(), piece.data(), piece.size());
    std::copy(ids.begin(), ids.end(), slot.ids.begin());
    slot.state.store(kReady, std::memory_order_release);
    return;
  }
}

}  // namespace tally::text
