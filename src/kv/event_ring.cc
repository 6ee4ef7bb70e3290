#include "kv/event_ring.h"

#include "base/check.h"

#include <algorithm>

namespace tally::kv {

EventRing::EventRing(uint32_t capacity, uint32_t block_tokens)
    : block_tokens_(block_tokens), events_(capacity), ids_(size_t{capacity} * block_tokens) {}

size_t EventRing::bytes(uint32_t capacity, uint32_t block_tokens) {
  return size_t{capacity} * (sizeof(Event) + sizeof(TokenId) * block_tokens);
}

void EventRing::add(const Event& event, std::span<const TokenId> ids) {
  if (events_.empty()) return;
  ++last_;
  const size_t at = place(last_);
  events_[at] = event;
  if (event.kind != Event::Kind::kBlockStored) return;
  TALLY_CHECK(ids.size() == block_tokens_, "ids of a stored block", ids.size(), block_tokens_);
  std::ranges::copy(ids, ids_.begin() + static_cast<ptrdiff_t>(at * block_tokens_));
}

size_t EventRing::place(uint64_t number) const {
  TALLY_CHECK(number >= first() && number <= last_, "no such event", number, first(), last_);
  return static_cast<size_t>((number - 1) % events_.size());
}

const Event& EventRing::operator[](uint64_t number) const { return events_[place(number)]; }

std::span<const TokenId> EventRing::ids(uint64_t number) const {
  const size_t at = place(number);
  if (events_[at].kind != Event::Kind::kBlockStored) return {};
  return std::span(ids_).subspan(at * block_tokens_, block_tokens_);
}

}  // namespace tally::kv
