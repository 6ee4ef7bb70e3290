#pragma once
// A model made of hashes. Each cell of its cache stores c_i = H(c_{i-1}, id_i, position_i), with c_{-1} =
// H(namespace). A forward reads every cell of the context back through the block table and derives the chain
// anew, so a wrong block, a stale cell or a leaked namespace is seen at once and told with position and
// block. Test support, not in the product.

#include "base/ids.h"
#include "kv/ledger.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tally::sched::testing {

inline constexpr int32_t kVocabulary = 1024;

inline uint64_t mix(uint64_t x) {
  x += 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return x ^ (x >> 31);
}

inline uint64_t chain_start(const kv::Namespace& space) {
  uint64_t c = 1;
  for (const uint64_t word : space) c = mix(c ^ word);
  return c;
}

inline uint64_t chain_next(uint64_t c, TokenId id, uint32_t position) {
  return mix(c ^ (static_cast<uint64_t>(static_cast<uint32_t>(raw(id))) << 32) ^ position);
}

// What a sequence's own sampler makes of the last cell: the token, and whether it is an end token.
struct FakeSampler {
  uint64_t seed = 0;
  uint32_t eos_period = 0;  // an end token about once in so many; 0: never
  uint32_t stop_at = 0;     // the generated token with this number (from 1) is an end token; 0: none

  TokenId pick(uint64_t c, uint32_t choice) const {
    return TokenId{static_cast<int32_t>(mix(c ^ mix(seed + choice)) % kVocabulary)};
  }
  bool stops(uint64_t c, uint32_t number, uint32_t choice) const {
    return number == stop_at || (eos_period != 0 && mix(c ^ (seed + choice) ^ 0x5107) % eos_period == 0);
  }
};

class FakeModel {
 public:
  FakeModel(uint32_t blocks, uint32_t block_tokens)
      : block_tokens_(block_tokens), cells_(size_t{blocks} * block_tokens, 0x7FF4DEADDEADDEADULL) {}

  // Computes rows [position, position + rows) and returns the last cell. Empty: a cell of the context was
  // wrong, see error().
  std::optional<uint64_t> forward(std::span<const TokenId> tokens, std::span<const BlockId> table,
                                  uint32_t position, uint32_t rows, const kv::Namespace& space) {
    uint64_t c = chain_start(space);
    for (uint32_t p = 0; p < position; ++p) {
      c = chain_next(c, tokens[p], p);
      if (cell(table, p) == c) continue;
      error_ = "wrong cell at position " + std::to_string(p) + " of " + std::to_string(position) +
               ", block " + std::to_string(raw(table[p / block_tokens_]));
      return std::nullopt;
    }
    for (uint32_t p = position; p < position + rows; ++p) {
      c = chain_next(c, tokens[p], p);
      cell(table, p) = c;
    }
    return c;
  }
  void copy(BlockId from, BlockId to) {
    std::copy_n(cells_.begin() + static_cast<ptrdiff_t>(size_t{raw(from)} * block_tokens_), block_tokens_,
                cells_.begin() + static_cast<ptrdiff_t>(size_t{raw(to)} * block_tokens_));
  }
  const std::string& error() const { return error_; }

 private:
  uint64_t& cell(std::span<const BlockId> table, uint32_t p) {
    return cells_[size_t{raw(table[p / block_tokens_])} * block_tokens_ + p % block_tokens_];
  }
  uint32_t block_tokens_;
  std::vector<uint64_t> cells_;
  std::string error_;
};

}  // namespace tally::sched::testing
