#include "engine/drafts/lookup.h"

#include "base/check.h"

#include <algorithm>

namespace tally::engine {
namespace {

constexpr uint32_t kWindowMax = 32'768;  // 512 KiB a seat
constexpr uint32_t kLong = 8;            // equal tokens that make a match a sure one

// How many tokens before `end` and before the end of the text are the same, counted to kLong.
uint32_t equal_tokens(std::span<const TokenId> known, LookupIndex::Match match) {
  uint32_t n = match.suffix;
  if (n < LookupIndex::kSuffixMax) return n;
  while (n < kLong && n < match.end && known[match.end - n - 1] == known[known.size() - n - 1]) ++n;
  return n;
}

uint32_t grade_of(uint32_t equal) {
  return equal >= kLong ? 3 : std::min(equal, LookupIndex::kSuffixMax) - LookupIndex::kSuffixMin;
}

}  // namespace

uint32_t Lookup::window_tokens(uint32_t context) {
  return std::clamp(context, 2 * LookupIndex::kSuffixMax, kWindowMax);
}

size_t Lookup::bytes(uint32_t seats, uint32_t context) {
  return seats * LookupIndex::bytes(window_tokens(context));
}

Lookup::Lookup(std::span<std::byte> memory, uint32_t seats, uint32_t context, std::vector<TokenId> stops)
    : stops_(std::move(stops)) {
  TALLY_CHECK(memory.size() >= bytes(seats, context), "memory of a lookup", memory.size());
  const size_t slots = LookupIndex::bytes(window_tokens(context)) / sizeof(uint32_t);
  auto* first = reinterpret_cast<uint32_t*>(memory.data());
  for (uint32_t s = 0; s < seats; ++s) seats_.emplace_back(std::span(first + s * slots, slots));
}

Proposal Lookup::propose(const Ask& ask) {
  const LookupIndex::Match match = seats_[ask.seat].find(ask.known);
  if (match.suffix == 0) return {};
  const auto rest = ask.known.subspan(match.end);
  Proposal out{.count = 0, .grade = grade_of(equal_tokens(ask.known, match))};
  while (out.count < std::min(ask.into.size(), rest.size()) &&
         !std::binary_search(stops_.begin(), stops_.end(), rest[out.count])) {
    ask.into[out.count] = rest[out.count];
    ++out.count;
  }
  return out;
}

void Lookup::observe(uint32_t seat, std::span<const TokenId> known, bool begins) {
  if (known.empty()) return;  // who takes the seat next clears it: others wait for the end of who leaves
  if (begins) seats_[seat].clear();
  seats_[seat].extend(known);
}

}  // namespace tally::engine
