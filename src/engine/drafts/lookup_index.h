#pragma once
// Where the last tokens of a text have stood before: prompt lookup. A hash table of the ends of all pairs,
// triples and quadruples, of each the latest, with open addressing and linear probing.
//
// Rolling: it covers the newest tokens, half a window of them at least. 16 bytes a token of the window.

#include "base/ids.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tally::engine {

class LookupIndex {
 public:
  static constexpr uint32_t kSuffixMin = 2, kSuffixMax = 4;
  static constexpr uint32_t kSlotsPerToken = 4;  // three entries: at most 3/4 full
  static size_t bytes(uint32_t window_tokens) {
    return size_t{window_tokens} * kSlotsPerToken * sizeof(uint32_t);
  }

  // Requires: at least 2 * kSuffixMax * kSlotsPerToken slots, which stay where they are.
  explicit LookupIndex(std::span<uint32_t> slots);

  // Forgets everything.
  void clear();
  // Takes in what was appended. Requires: `known` begins with what it was before.
  void extend(std::span<const TokenId> known);

  // The text before `end` ends as all of `known` does, in `suffix` tokens. suffix 0: nowhere.
  struct Match {
    uint32_t end = 0, suffix = 0;
  };
  // The latest place where the longest suffix of kSuffixMax, ..., kSuffixMin tokens stood before. Requires:
  // extend(known).
  Match find(std::span<const TokenId> known) const;
  // Places before this position are not found any more.
  uint32_t begin() const { return begin_; }

 private:
  struct Hashes;
  uint32_t* probe(std::span<const TokenId> known, uint32_t end, uint32_t suffix, uint64_t hash) const;
  void insert(std::span<const TokenId> known, uint32_t end);

  std::span<uint32_t> slots_;  // end << 2 | suffix - 1; 0: free
  uint32_t window_;
  uint32_t begin_ = 0;    // of the tokens covered
  uint32_t indexed_ = 0;  // ends up to this one are in the table
};

}  // namespace tally::engine
