#pragma once
// The buffers of one step (private to the room).

#include "base/accounts.h"
#include "model/model.h"
#include "model/program.h"

#include <vector>

namespace tally::model {

// Rows [row_begin, row_begin + rows) of a segment, one KV head: an item of the attend stage.
struct AttendTile {
  uint32_t segment = 0, row_begin = 0, rows = 0;
};

struct Scratch::State {
  StepLimits limits;
  ScratchLayout layout;
  base::Arena arena;
  std::vector<uint32_t> row_position, row_segment;  // [rows]
  std::vector<uint8_t> nonfinite;                   // [rows]
  std::vector<uint8_t> head_nonfinite;              // [logits rows]
  std::vector<uint8_t> worker_nonfinite;  // [threads][rows]: KV heads of one row run on several workers
  std::vector<AttendTile> tiles;          // capacity: rows_max
  uint32_t rows = 0;
  uint32_t vocab = 0;
  OpTimes times;

  float* buf(Buf b) const {
    return reinterpret_cast<float*>(arena.data() + layout.buf[static_cast<size_t>(b)]);
  }
  std::byte* panel(kernels::PanelKind k) const { return arena.data() + layout.panel[static_cast<size_t>(k)]; }
  std::byte* worker(size_t w) const { return arena.data() + layout.worker_begin + w * layout.worker_bytes; }
};

}  // namespace tally::model
