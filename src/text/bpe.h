#pragma once
// BPE: bytes, or characters, of a piece, merged by the ranks of tokenizer.ggml.merges.

#include "base/ids.h"
#include "base/result.h"
#include "text/character_pairs.h"
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

inline constexpr size_t kMergesMax = 1u << 21;

// (left id, right id) to rank; open addressing.
class MergeTable {
 public:
  explicit MergeTable(size_t entries_max);
  // Keeps the first of equal pairs. Requires room.
  void add(uint32_t left, uint32_t right, uint32_t rank);
  // kNoRule if the two do not merge.
  uint32_t find(uint32_t left, uint32_t right) const { return slots_[slot_of(left, right)].rank; }
  size_t memory_bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    uint32_t left = kNoToken, right = kNoToken;
    uint32_t rank = kNoRule;  // kNoRule: empty
  };
  size_t slot_of(uint32_t left, uint32_t right) const;
  std::vector<Slot> slots_;  // a power of two
};

struct BpeOptions {
  bool ignore_merges = false;  // a piece that is a token is that token, whatever the merges say
  bool raw_utf8 = false;       // characters, spelled as in SPM, and <0xXX> tokens; else bytes in the byte map
  bool newline_runs_whole = false;  // ignore_merges for pieces that begin with a newline
};

class BpeEncoder {
 public:
  // Merges whose parts or result are no tokens that text may become are dropped and counted. Errors: kBadData
  // on an entry without a blank, or too many entries. `vocabulary` outlives this.
  static base::Result<BpeEncoder> build(const Vocabulary& vocabulary,
                                        std::span<const std::string_view> merges, const BpeOptions& options);

  // Appends the ids of one piece of the pre-tokenizer. False: a byte has no token and there is no unknown
  // token.
  bool encode_piece(std::string_view piece, MergeScratch& scratch, std::vector<TokenId>& ids) const;

  // raw_utf8: end of the part of a spelled text that begins at `at` and that no merge can leave.
  size_t part_end(std::string_view spelled, size_t at) const { return pairs_->part_end(spelled, at); }

  size_t dropped_merges() const { return dropped_merges_; }
  size_t memory_bytes() const;

 private:
  struct ByteRules;
  struct CharacterRules;

  BpeEncoder(const Vocabulary& vocabulary, size_t merges_count, const BpeOptions& options);
  // Token that text may become; kNoToken if there is none.
  uint32_t token(std::string_view piece) const;
  base::Result<void> take_merge(size_t rank, std::string_view entry);
  bool emit_bytes(std::string_view bytes, std::vector<TokenId>& ids) const;

  const Vocabulary* vocabulary_;
  BpeOptions options_;
  std::array<uint32_t, 256> byte_ids_;  // kNoToken: the vocabulary lacks the byte
  MergeTable table_;
  std::vector<uint32_t> merged_;  // by rank; kNoToken: dropped
  // bytes: first << 8 | second, if some merged token holds these bytes side by side
  std::bitset<0x10000> byte_pairs_;
  std::optional<CharacterPairs> pairs_;  // raw_utf8: of the merged tokens
  size_t dropped_merges_ = 0;
};

}  // namespace tally::text
