#pragma once
// Byte-level BPE: bytes of a piece, merged by the ranks of tokenizer.ggml.merges.

#include "base/ids.h"
#include "base/result.h"
#include "text/merge.h"
#include "text/vocabulary.h"

#include <array>
#include <bitset>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tally::text {

inline constexpr size_t kMergesMax = 1u << 22;

// (left id, right id) to (rank, merged id); open addressing.
class MergeTable {
 public:
  explicit MergeTable(size_t entries_max);
  // Keeps the first of equal pairs. Requires room.
  void add(uint32_t left, uint32_t right, MergeCandidate candidate);
  MergeCandidate find(uint32_t left, uint32_t right) const;
  size_t memory_bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    uint32_t left = kNoToken, right = kNoToken;  // left kNoToken: empty
    MergeCandidate candidate;
  };
  size_t slot_of(uint32_t left, uint32_t right) const;
  std::vector<Slot> slots_;  // a power of two
};

class BpeEncoder {
 public:
  // Merges whose parts or result are no tokens that text may become are dropped and counted. Errors: kBadData
  // on an entry without a blank, or too many entries. `vocabulary` outlives this.
  static base::Result<BpeEncoder> build(const Vocabulary& vocabulary,
                                        std::span<const std::string_view> merges, bool ignore_merges);

  // Appends the ids of one piece of the pre-tokenizer. False: a byte has no token and there is no unknown
  // token.
  bool encode_piece(std::string_view piece, MergeScratch& scratch, std::vector<TokenId>& ids) const;

  size_t dropped_merges() const { return dropped_merges_; }
  size_t memory_bytes() const { return table_.memory_bytes() + sizeof(*this); }

 private:
  BpeEncoder(const Vocabulary& vocabulary, size_t merges_count, bool ignore_merges);

  const Vocabulary* vocabulary_;
  bool ignore_merges_;
  std::array<uint32_t, 256> byte_ids_;  // kNoToken: the vocabulary lacks the byte
  MergeTable table_;
  std::bitset<0x10000> byte_pairs_;  // first << 8 | second: some merged token holds these bytes side by side
  size_t dropped_merges_ = 0;
};

}  // namespace tally::text
