#pragma once
// The waiting merges of a long piece, lowest (rank, position) first. Merges of one rank mostly come in
// ascending positions: those stand in a line per rank, push and pop in constant time. The few that come out
// of order go to a binary heap. So the worst case stays O(log n), and a megabyte of one letter is a walk from
// left to right.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace tally::text {

class MergeQueue {
 public:
  struct Entry {
    uint32_t rank = 0, position = 0;
    uint32_t merged = 0;  // id of the token that the merge makes
    uint32_t size = 0;  // bytes of both sides when the merge was found; anything else later means it is stale
  };

  // Empties the queue; about `expected` entries will wait at once.
  void start(size_t expected) {
    pool_.clear(), lines_.clear(), ranks_.clear(), late_.clear();
    pool_.reserve(expected);
    slots_.assign(kSlotsMin, kNone);
    free_ = kNone;
  }

  void push(const Entry& entry) {
    Line& line = lines_[line_of(entry.rank)];
    const bool empty = line.head == kNone;
    if (!empty && pool_[line.tail].entry.position > entry.position) {
      late_.push_back(entry);
      std::push_heap(late_.begin(), late_.end(), later);
      return;
    }
    const uint32_t at = place(entry);
    if (empty) {
      line.head = at;
      ranks_.push_back(entry.rank);
      std::push_heap(ranks_.begin(), ranks_.end(), std::greater<>());
    } else {
      pool_[line.tail].next = at;
    }
    line.tail = at;
  }

  // False if nothing waits.
  bool pop(Entry* entry) {
    if (ranks_.empty() && late_.empty()) return false;
    if (!ranks_.empty()) {
      Line& line = lines_[line_of(ranks_.front())];
      const uint32_t at = line.head;
      Waiting& first = pool_[at];
      if (late_.empty() || later(late_.front(), first.entry)) {
        *entry = first.entry;
        line.head = first.next;
        first.next = free_;
        free_ = at;
        if (line.head == kNone) {
          std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<>());
          ranks_.pop_back();
        }
        return true;
      }
    }
    *entry = late_.front();
    std::pop_heap(late_.begin(), late_.end(), later);
    late_.pop_back();
    return true;
  }

 private:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  static constexpr size_t kSlotsMin = 64;  // a power of two

  struct Waiting {
    Entry entry;
    uint32_t next;
  };
  struct Line {
    uint32_t rank;
    uint32_t head = kNone, tail = kNone;  // in pool_
  };

  static bool later(const Entry& a, const Entry& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  }

  // An index in pool_ that holds `entry`, last of its line.
  uint32_t place(const Entry& entry) {
    if (free_ == kNone) {
      pool_.push_back({entry, kNone});
      return static_cast<uint32_t>(pool_.size() - 1);
    }
    const uint32_t at = free_;
    free_ = pool_[at].next;
    pool_[at] = {entry, kNone};
    return at;
  }

  size_t slot_of(uint32_t rank) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = (rank * 0x9E3779B1u >> 7) & mask;
    while (slots_[slot] != kNone && lines_[slots_[slot]].rank != rank) slot = (slot + 1) & mask;
    return slot;
  }

  uint32_t line_of(uint32_t rank) {
    size_t slot = slot_of(rank);
    if (slots_[slot] != kNone) return slots_[slot];
    if ((lines_.size() + 1) * 2 > slots_.size()) {
      slots_.assign(slots_.size() * 2, kNone);
      for (uint32_t i = 0; i < lines_.size(); ++i) slots_[slot_of(lines_[i].rank)] = i;
      slot = slot_of(rank);
    }
    slots_[slot] = static_cast<uint32_t>(lines_.size());
    lines_.push_back({rank});
    return slots_[slot];
  }

  std::vector<Waiting> pool_;
  uint32_t free_ = kNone;  // first of the places that are free again
  std::vector<Line> lines_;
  std::vector<uint32_t> slots_;  // rank to line, open addressing
  std::vector<uint32_t> ranks_;  // heap, lowest first: ranks whose line is not empty
  std::vector<Entry> late_;      // heap, lowest first
};

}  // namespace tally::text
