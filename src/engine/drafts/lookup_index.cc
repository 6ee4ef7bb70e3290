#include "engine/drafts/lookup_index.h"

#include "base/check.h"

#include <algorithm>
#include <array>

namespace tally::engine {
namespace {

constexpr uint32_t kSuffixBits = 2;

uint64_t join(uint64_t hash, TokenId id) {
  hash = (hash ^ static_cast<uint32_t>(raw(id))) * 0x9E3779B97F4A7C15u;
  return hash ^ (hash >> 29);
}

}  // namespace

// Of the last 2, 3 and 4 tokens before an end, each made from the one before.
struct LookupIndex::Hashes {
  std::array<uint64_t, kSuffixMax + 1> of{};
  Hashes(std::span<const TokenId> known, uint32_t end, uint32_t begin) {
    uint64_t hash = 0;
    for (uint32_t n = 1; n <= std::min(kSuffixMax, end - begin); ++n) of[n] = hash = join(hash, known[end - n]);
  }
};

LookupIndex::LookupIndex(std::span<uint32_t> slots)
    : slots_(slots), window_(static_cast<uint32_t>(slots.size() / kSlotsPerToken)) {
  TALLY_CHECK(window_ >= 2 * kSuffixMax, "window of a lookup index", window_);
  clear();
}

void LookupIndex::clear() {
  std::fill(slots_.begin(), slots_.end(), 0);
  begin_ = indexed_ = 0;
}

// The slot of the n-gram, or the free one where it belongs.
uint32_t* LookupIndex::probe(std::span<const TokenId> known, uint32_t end, uint32_t suffix,
                             uint64_t hash) const {
  const auto wanted = known.subspan(end - suffix, suffix);
  size_t at = static_cast<size_t>(((hash >> 32) * slots_.size()) >> 32);
  for (;; at = at + 1 == slots_.size() ? 0 : at + 1) {
    const uint32_t slot = slots_[at];
    if (slot == 0) return &slots_[at];
    if ((slot & ((1u << kSuffixBits) - 1)) != suffix - 1) continue;
    if (std::ranges::equal(known.subspan((slot >> kSuffixBits) - suffix, suffix), wanted)) return &slots_[at];
  }
}

void LookupIndex::insert(std::span<const TokenId> known, uint32_t end) {
  const Hashes hashes(known, end, begin_);
  for (uint32_t n = kSuffixMin; n <= std::min(kSuffixMax, end - begin_); ++n)
    *probe(known, end, n, hashes.of[n]) = end << kSuffixBits | (n - 1);
}

void LookupIndex::extend(std::span<const TokenId> known) {
  // An end with nothing behind it would be found as the suffix itself.
  const auto last = static_cast<uint32_t>(known.size()) - 1;
  if (last > begin_ + window_) {  // full, or a text that never fits: the newest half window
    std::fill(slots_.begin(), slots_.end(), 0);
    begin_ = indexed_ = last - window_ / 2;
  }
  while (indexed_ < last) insert(known, ++indexed_);
}

LookupIndex::Match LookupIndex::find(std::span<const TokenId> known) const {
  const auto end = static_cast<uint32_t>(known.size());
  const Hashes hashes(known, end, begin_);
  for (uint32_t n = std::min(kSuffixMax, end - begin_); n >= kSuffixMin; --n) {
    const uint32_t slot = *probe(known, end, n, hashes.of[n]);
    if (slot != 0) return {slot >> kSuffixBits, n};
  }
  return {};
}

}  // namespace tally::engine
