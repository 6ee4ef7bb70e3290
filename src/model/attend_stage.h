#pragma once
// The attend stage of a layer as work items: rows x spans x KV heads (private to the room).
//
// A tile is some rows of a segment. It is one piece, or several where it would be long beside what all
// threads have to do: each piece is then a range of the spans that the tile's rows see. An item is a piece
// for one KV head; items are pulled in the order of their length, longest first.
// The states after each span of a cut tile lie in the scratch. The worker that ends the last piece of a cut
// (tile, KV head) merges them, in the order of the spans: no barrier, and no cut changes a bit.

#include "kernels/kernels.h"
#include "model/model.h"

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

namespace tally::model {

struct Instruction;
struct Program;
struct StepContext;

// What decides how a layer cuts the rows of a step.
struct AttendShape {
  uint32_t kv_heads = 0, group = 0, window = 0;
  size_t state_floats = 0;  // of one query head after one span
  bool operator==(const AttendShape&) const = default;
};

struct AttendTile {
  uint32_t segment = 0, row_begin = 0, rows = 0;
  uint32_t position = 0;         // of the first row
  uint32_t pieces = 1, cut = 0;  // cut: its place among the cut tiles, if it has more than one piece
  size_t states = 0;             // where its states begin, [kv_heads][spans][rows * group][state_floats]
  size_t head_states = 0;        // floats of one KV head
};

struct AttendPiece {
  uint32_t tile = 0;
  uint32_t span_begin = 0, span_end = 0;
  uint64_t work = 0;  // keys that the rows meet
};

class AttendPlan {
 public:
  // What a step may ask for; all memory is taken here. `states_max`: floats of states at a time, 0: no tile
  // is ever cut.
  AttendPlan() = default;
  AttendPlan(size_t rows_max, size_t threads, size_t states_max);

  // Rows are others than before.
  void begin_step() { shape_ = {}; }
  // Makes the tiles and pieces of the step's segments for a layer, ready to run once. The work of the last
  // call in the step serves again if the shape is the same.
  void prepare(std::span<const Segment> segments, const AttendShape& shape);

  const std::vector<AttendTile>& tiles() const { return tiles_; }
  const std::vector<AttendPiece>& pieces() const { return pieces_; }
  // Notes that a piece of a cut tile is done for one KV head. True for the last one, to one caller: it sees
  // all that the others wrote. Threads: any.
  bool end_piece(const AttendTile& tile, size_t kv_head);

 private:
  void make_tiles(std::span<const Segment> segments);
  void cut(uint32_t tile, uint64_t longest);

  size_t threads_ = 1, states_max_ = 0, pieces_max_ = 0;
  AttendShape shape_;
  std::vector<AttendTile> tiles_;
  std::vector<AttendPiece> pieces_;
  uint32_t cut_tiles_ = 0;
  size_t states_ = 0;                               // floats in use
  std::vector<std::atomic<uint32_t>> pieces_left_;  // [cut tiles][kv_heads]
};

// Floats of states that a step may keep at a time.
size_t attend_states_max(const Program& program, const StepLimits& limits, size_t threads);

// Prepares the scratch's plan for the layer of an attend instruction. Returns the items of its stage.
size_t begin_attend(const Program& program, const StepContext& step, const Instruction& in);
void attend_item(const Program& program, const StepContext& step, const Instruction& in, size_t item,
                 size_t worker);

}  // namespace tally::model
