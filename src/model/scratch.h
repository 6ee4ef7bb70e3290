#pragma once
// The buffers of one step (private to the room).

#include "base/accounts.h"
#include "model/attend_stage.h"
#include "model/model.h"
#include "model/program.h"

#include <vector>

namespace tally::model {

// Up to 16 slots of one expert, which has the slots [expert_begin, expert_begin + expert_slots).
struct ExpertTile {
  uint32_t expert = 0, slot_begin = 0, slots = 0;
  uint32_t expert_begin = 0, expert_slots = 0;
};

struct Scratch::State {
  StepLimits limits;
  ScratchLayout layout;
  base::Arena arena;
  base::Arena scores;  // [heads][rows][context] f32, of --attention standard only
  std::vector<uint32_t> row_position, row_segment;  // [rows]
  std::vector<uint8_t> nonfinite;                   // [rows]
  std::vector<uint8_t> head_nonfinite;              // [logits rows]
  std::vector<uint8_t> worker_nonfinite;  // [threads][rows]: KV heads of one row run on several workers
  AttendPlan attend;
  // Mixture of experts: a row's experts and their weights, best first, and where its values lie among the
  // slots.
  std::vector<uint32_t> route_ids, row_slot;      // [rows][used]
  std::vector<float> route_weights;               // [rows][used]
  std::vector<uint32_t> slot_row, expert_next;    // [slots], [experts]
  std::vector<uint8_t> slot_nonfinite;            // [slots]
  std::vector<ExpertTile> expert_tiles, experts;  // of a stage of slots; one for each active expert
  uint32_t rows = 0;
  uint32_t vocab = 0;
  OpTimes times;

  float* buf(Buf b) const {
    return reinterpret_cast<float*>(arena.data() + layout.buf[static_cast<size_t>(b)]);
  }
  std::byte* panel(kernels::PanelKind k) const { return arena.data() + layout.panel[static_cast<size_t>(k)]; }
  std::byte* expert_panel(kernels::PanelKind k) const {
    return arena.data() + layout.expert_panel[static_cast<size_t>(k)];
  }
  float* attend_states() const { return reinterpret_cast<float*>(arena.data() + layout.attend_states); }
  kernels::ScoreMatrix score_rows(size_t head, size_t row) const {
    const size_t context = limits.context_max, head_stride = limits.rows_max * context;
    return {reinterpret_cast<float*>(scores.data()) + head * head_stride + row * context, head_stride,
            context};
  }
  std::byte* worker(size_t w) const { return arena.data() + layout.worker_begin + w * layout.worker_bytes; }
};

}  // namespace tally::model
