#pragma once
// Remember the ids of short pieces. First come, first kept: a slot is written once and never changes, so
// readers need no lock and the memory is fixed. Results never depend on it: it holds only what encoding the
// piece gives. Threads: all functions may be called from any thread.

#include "base/ids.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace tally::text {

class WordCache {
 public:
  static constexpr size_t kPiecesMax = 65536;
  static constexpr size_t kBytesMax = 32;
  static constexpr size_t kIdsMax = 7;

  // A small vocabulary, of which there are few words, takes a small one.
  explicit WordCache(size_t vocab_size);

  // Appends the ids of `piece` to `ids` if they are known. Requires piece.size() <= kBytesMax; hash =
  // hash_bytes(piece).
  bool find(std::string_view piece, uint64_t hash, std::vector<TokenId>& ids) const;
  // Keeps the ids if a slot is free and they are few enough.
  void insert(std::string_view piece, uint64_t hash, std::span<const TokenId> ids);
  size_t memory_bytes() const { return pieces_ * sizeof(Slot); }

 private:
  enum State : uint8_t { kEmpty, kBeingWritten, kReady };
  struct alignas(64) Slot {
    std::atomic<uint8_t> state{kEmpty};  // the rest may be read once this is kReady
    uint8_t bytes_count = 0;
    uint8_t ids_count = 0;
    std::array<char, kBytesMax> bytes{};
    std::array<TokenId, kIdsMax> ids{};
  };
  static constexpr size_t kWays = 4;  // slots a piece may be in
  const size_t pieces_;               // a power of two
  std::unique_ptr<Slot[]> slots_;
};

}  // namespace tally::text
