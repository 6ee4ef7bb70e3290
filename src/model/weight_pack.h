#pragma once
// Reads entries of a weight plan from the file and packs them, piece by piece on all threads. (Private to the
// room.)

#include "base/pool.h"
#include "base/result.h"
#include "gguf/gguf.h"
#include "model/weights.h"

#include <cstddef>
#include <span>
#include <vector>

namespace tally::model {

// A piece of one entry that a worker reads and packs on its own.
struct Piece {
  const WeightEntry* entry = nullptr;
  size_t row_begin = 0, rows = 0;
};

class PiecePacker {
 public:
  // What a worker reads into, grown as needed.
  struct Buffers {
    std::vector<std::byte> file;
    std::vector<float> wide, turned;
  };

  PiecePacker(const gguf::File& file, base::ThreadPool& pool);

  // The entries of one turn; -1: those that stay.
  static std::vector<Piece> cut(std::span<const WeightEntry> entries, int32_t turn);
  // Each to its entry's offset. Errors: kIo, kBadData (file cut meanwhile).
  base::Result<void> pack(std::span<const Piece> pieces, std::byte* arena);

 private:
  const gguf::File& file_;
  base::ThreadPool& pool_;
  std::vector<Buffers> buffers_;  // one a worker
};

}  // namespace tally::model
