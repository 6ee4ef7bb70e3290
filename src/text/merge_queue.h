#pragma once
// The waiting merges of a long stretch, lowest (rank, position) first. Merges of one rank stand in a line; a
// line is put in order of position when its rank's turn comes, which it mostly is by itself. Merges that come
// for the rank at work, or a lower one, go to a small heap. So the worst case stays O(log n), and a megabyte
// of one letter is a walk from left to right.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

namespace tally::text {

class MergeQueue {
 public:
  struct Entry {
    uint32_t rank = 0, position = 0;
  };

  // Empties the queue.
  void start() {
    lines_.clear(), ranks_.clear(), late_.clear(), ordered_.clear();
    slots_.assign(kSlotsMin, kNone);
    places_ = 0;
    free_ = walk_ = kNone;
    next_ordered_ = 0;
    started_ = false;
  }

  void push(const Entry& entry) {
    if (started_ && entry.rank <= rank_) {
      late_.push_back(entry);
      std::push_heap(late_.begin(), late_.end(), later);
      return;
    }
    Line& line = lines_[line_of(entry.rank)];
    const uint32_t added = place(entry.position);
    if (line.head == kNone) {
      line.head = added;
      line.in_order = true;
      ranks_.push_back(entry.rank);
      std::push_heap(ranks_.begin(), ranks_.end(), std::greater<>());
    } else {
      Waiting& last = at(line.tail);
      line.in_order = line.in_order && last.position <= entry.position;
      last.next = added;
    }
    line.tail = added;
  }

  // False if nothing waits.
  bool pop(Entry* entry) {
    // Every late merge is of a rank at most rank_, every line that has not had its turn of a higher one.
    if (walk_ == kNone && next_ordered_ == ordered_.size() && late_.empty() && !start_line()) return false;
    const bool of_line = walk_ != kNone || next_ordered_ < ordered_.size();
    if (of_line) {
      const Entry first{rank_, walk_ != kNone ? at(walk_).position : ordered_[next_ordered_]};
      if (late_.empty() || later(late_.front(), first)) {
        *entry = first;
        if (walk_ != kNone) {
          walk_ = release(walk_);
        } else {
          ++next_ordered_;
        }
        return true;
      }
    }
    *entry = late_.front();
    std::pop_heap(late_.begin(), late_.end(), later);
    late_.pop_back();
    return true;
  }

  size_t memory_bytes() const {
    return blocks_.size() * kBlock * sizeof(Waiting) + lines_.capacity() * sizeof(Line) +
           (slots_.capacity() + ranks_.capacity() + ordered_.capacity()) * sizeof(uint32_t) +
           marks_.capacity() * sizeof(uint64_t) + late_.capacity() * sizeof(Entry);
  }

 private:
  static constexpr uint32_t kNone = 0xFFFFFFFF;
  static constexpr size_t kSlotsMin = 64;      // a power of two
  static constexpr uint32_t kBlock = 1 << 13;  // places

  struct Waiting {
    uint32_t position;
    uint32_t next;
  };
  struct Line {
    uint32_t rank;
    uint32_t head = kNone, tail = kNone;  // places
    bool in_order = true;
  };

  static bool later(const Entry& a, const Entry& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
  }

  Waiting& at(uint32_t place) { return blocks_[place / kBlock][place % kBlock]; }

  uint32_t place(uint32_t position) {
    uint32_t chosen = free_;
    if (chosen != kNone) {
      free_ = at(chosen).next;
    } else {
      chosen = places_++;
      if (chosen / kBlock == blocks_.size()) blocks_.push_back(std::make_unique<Waiting[]>(kBlock));
    }
    at(chosen) = {position, kNone};
    return chosen;
  }

  // Gives a place back; returns the one after it in its line.
  uint32_t release(uint32_t place) {
    Waiting& waiting = at(place);
    const uint32_t next = waiting.next;
    waiting.next = free_;
    free_ = place;
    return next;
  }

  // The lowest rank that waits becomes the one at work. False if there is none.
  bool start_line() {
    if (ranks_.empty()) return false;
    started_ = true;
    rank_ = ranks_.front();
    std::pop_heap(ranks_.begin(), ranks_.end(), std::greater<>());
    ranks_.pop_back();
    Line& line = lines_[line_of(rank_)];
    if (line.in_order) {
      walk_ = line.head;
    } else {
      ordered_.clear();
      next_ordered_ = 0;
      for (uint32_t p = line.head; p != kNone; p = release(p)) ordered_.push_back(at(p).position);
      put_in_order();
    }
    line.head = line.tail = kNone;
    return true;
  }

  // A few positions are sorted; many are marked in a bitmap and read off it.
  void put_in_order() {
    const auto [low, high] = std::minmax_element(ordered_.begin(), ordered_.end());
    const uint32_t first = *low / 64;
    const size_t words = *high / 64 - first + 1;
    if (words > ordered_.size() * 8) {
      std::sort(ordered_.begin(), ordered_.end());
      return;
    }
    marks_.assign(words, 0);
    for (const uint32_t p : ordered_) marks_[p / 64 - first] |= uint64_t{1} << p % 64;
    ordered_.clear();
    for (size_t w = 0; w < words; ++w) {
      for (uint64_t left = marks_[w]; left != 0; left &= left - 1) {
        ordered_.push_back(static_cast<uint32_t>((first + w) * 64) +
                           static_cast<uint32_t>(std::countr_zero(left)));
      }
    }
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

  std::vector<std::unique_ptr<Waiting[]>> blocks_;  // of places; they grow without being copied
  uint32_t places_ = 0;                             // that were ever taken
  uint32_t free_ = kNone;                           // first of those that are free again
  std::vector<Line> lines_;
  std::vector<uint32_t> slots_;  // rank to line, open addressing
  std::vector<uint32_t> ranks_;  // heap, lowest first: ranks above rank_ whose line is not empty

  // The line at work: a list that was in order, or an array that was put in order.
  bool started_ = false;
  uint32_t rank_ = 0;
  uint32_t walk_ = kNone;
  std::vector<uint32_t> ordered_;
  size_t next_ordered_ = 0;
  std::vector<uint64_t> marks_;

  std::vector<Entry> late_;  // heap, lowest first
};

}  // namespace tally::text
