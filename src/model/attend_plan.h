#pragma once
// How an attend stage cuts the rows of a step into work items: rows x spans x KV heads (private to the room).
//
// A tile is some rows of a segment. It is one piece, or several where it would be long beside what all
// threads have to do: each piece is then a range of the spans that the tile's rows see. An item is a piece
// for one KV head; items are pulled in the order of their length, longest first.
// A share is several short tiles whose sequences begin with the same blocks: their rows attend the spans of
// those together, so that K and V are loaded once for all, and then each tile what follows alone.
// The states after each span of a cut tile and of a share lie in the scratch. The worker that ends the last
// piece that a (tile, KV head) waits for merges them, in the order of the spans: no barrier, and neither a
// cut nor a share changes a bit.

#include "kernels/kernels.h"
#include "model/model.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace tally::model {

// What decides how a layer cuts the rows of a step.
struct AttendShape {
  uint32_t kv_heads = 0, group = 0, window = 0;
  size_t state_floats = 0;       // of one query head after one span
  bool distance_counts = false;  // ALiBi: what a row gets from a span depends on its position
  bool operator==(const AttendShape&) const = default;
};

// The block ids of the step's sequences (Batch::tables), from where each Segment says.
struct AttendBlocks {
  std::span<const uint32_t> tables;
  uint32_t block_tokens = 0;  // 0: not known, nothing is shared
};

struct AttendTile {
  static constexpr uint32_t kAlone = std::numeric_limits<uint32_t>::max();

  uint32_t segment = 0, row_begin = 0, rows = 0;
  uint32_t position = 0;         // of the first row
  uint32_t pieces = 1, cut = 0;  // pieces it waits for, its share's too; its place among the cut tiles
  uint32_t share = kAlone, share_row = 0;  // where its rows begin among those of its share
  size_t states = 0;  // where those of its own pieces begin, [kv_heads][spans][rows * group][state_floats]
  size_t head_states = 0;  // floats of one KV head
};

struct AttendShare {
  std::vector<uint32_t> tiles;
  uint32_t rows = 0;   // of all tiles
  uint32_t spans = 0;  // from position 0 on
  size_t states = 0, head_states = 0;
};

struct AttendPiece {
  uint32_t tile = 0;                    // of a share: its first
  uint32_t share = AttendTile::kAlone;  // whose piece it is, if it is of a share
  uint32_t span_begin = 0, span_end = 0;
  uint64_t work = 0;  // keys that the rows meet
};

// Query heads that the kernels take together: a tile has no fewer rows if it can help it, a share no more.
inline constexpr uint32_t kTileQueries = 32;
inline constexpr size_t kItemsPerThread = 4;  // so many even out what is left at the end of a stage

class AttendPlan {
 public:
  struct Limits {
    size_t rows = 0, threads = 1, kv_heads = 1;
    size_t states = 0;  // floats at a time; 0: no tile is ever cut, and nothing shared
  };

  AttendPlan() = default;
  // What a step may ask for; all memory is taken here.
  explicit AttendPlan(const Limits& limits);

  // Rows are others than before.
  void begin_step() { shape_ = {}; }
  // Makes the tiles and pieces of the step's segments for a layer, ready to run once. The work of the last
  // call in the step serves again if the shape is the same.
  void prepare(std::span<const Segment> segments, const AttendBlocks& blocks, const AttendShape& shape);

  const std::vector<AttendTile>& tiles() const { return tiles_; }
  std::span<const AttendShare> shares() const { return {shares_.data(), share_count_}; }
  const std::vector<AttendPiece>& pieces() const { return pieces_; }
  // Notes that one of the pieces that a tile waits for is done for one KV head. True for the last one, to one
  // caller: it sees all that the others wrote. Threads: any.
  bool end_piece(const AttendTile& tile, size_t kv_head);

 private:
  void make_tiles(std::span<const Segment> segments);
  void make_shares(std::span<const Segment> segments, const AttendBlocks& blocks);
  void join_share(uint32_t tile, uint32_t full_spans, std::span<const Segment> segments,
                  const AttendBlocks& blocks);
  void keep_shares_that_fit();
  void make_pieces();
  void cut_share(uint32_t share, uint64_t longest);
  void cut_tile(uint32_t tile, uint64_t longest);
  size_t take_states(size_t head_states);
  void add_pieces(AttendPiece first, kernels::SpanRange spans, size_t step);
  uint64_t work_of(const AttendPiece& piece) const;

  Limits limits_;
  size_t pieces_max_ = 0;
  AttendShape shape_;
  std::vector<AttendTile> tiles_;
  std::vector<AttendShare> shares_;  // the first share_count_ are of this step: the others keep their memory
  uint32_t share_count_ = 0;
  std::vector<AttendPiece> pieces_;
  uint32_t cut_tiles_ = 0;
  size_t states_ = 0;                               // floats in use
  std::vector<std::atomic<uint32_t>> pieces_left_;  // [cut tiles][kv_heads]
};

}  // namespace tally::model
