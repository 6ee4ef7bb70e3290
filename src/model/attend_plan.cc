#include "model/attend_plan.h"

#include <algorithm>

namespace tally::model {
namespace {

constexpr uint32_t kTileRows = 32;       // rows of a tile, if they are enough for all threads
constexpr size_t kPiecesPerThread = 32;  // behind the first of each tile; see cut_tile()

uint64_t first_seen(uint64_t position, uint32_t window) {
  return window == 0 || position < window ? 0 : position + 1 - window;
}

kernels::SpanRange spans_of(const AttendTile& tile, uint32_t window) {
  return kernels::attend_spans(tile.position, tile.rows, window);
}

}  // namespace

AttendPlan::AttendPlan(const Limits& limits)
    : limits_(limits),
      pieces_max_(limits.rows + limits.rows / 2 + kPiecesPerThread * limits.threads),
      shares_(limits.states == 0 ? 0 : limits.rows / 2),
      pieces_left_(kItemsPerThread * limits.threads + limits.rows * limits.kv_heads) {
  tiles_.reserve(limits.rows);
  pieces_.reserve(pieces_max_);
  for (AttendShare& share : shares_) share.tiles.reserve(kTileQueries);
}

void AttendPlan::make_tiles(std::span<const Segment> segments) {
  size_t rows = 0;
  for (const Segment& s : segments) rows += s.rows;
  uint32_t tile_rows = kTileRows;
  while (tile_rows / 2 * shape_.group >= kTileQueries &&
         rows / tile_rows * shape_.kv_heads < kItemsPerThread * limits_.threads)
    tile_rows /= 2;
  tiles_.clear();
  for (uint32_t g = 0; g < segments.size(); ++g) {
    const Segment& s = segments[g];
    for (uint32_t r = 0; r < s.rows; r += tile_rows)
      tiles_.push_back({.segment = g,
                        .row_begin = s.row_begin + r,
                        .rows = std::min(tile_rows, s.rows - r),
                        .position = s.position + r});
  }
}

// A tile joins the first share that gains by it: of each share of n tiles and k spans, n - 1 passes over k
// spans are saved.
void AttendPlan::join_share(uint32_t tile_idx, uint32_t full_spans, std::span<const Segment> segments,
                            const AttendBlocks& blocks) {
  AttendTile& tile = tiles_[tile_idx];
  const auto table = [&](uint32_t t) {
    return blocks.tables.begin() + segments[tiles_[t].segment].table_begin;
  };
  const uint32_t span_blocks = kernels::kSpanTokens / blocks.block_tokens;
  for (uint32_t i = 0; i < share_count_; ++i) {
    AttendShare& share = shares_[i];
    if ((share.rows + tile.rows) * shape_.group > kTileQueries) continue;
    const auto mine = table(tile_idx), theirs = table(share.tiles.front());
    const uint32_t most = std::min(full_spans, share.spans) * span_blocks;
    const auto same = static_cast<uint32_t>(std::mismatch(mine, mine + most, theirs).first - mine);
    const uint32_t spans = same / span_blocks;
    if (spans == 0 || spans * share.tiles.size() < share.spans * (share.tiles.size() - 1)) continue;
    tile.share = i, tile.share_row = share.rows;
    share.spans = spans, share.rows += tile.rows;
    share.tiles.push_back(tile_idx);
    return;
  }
  if (share_count_ == shares_.size()) return;
  AttendShare& share = shares_[share_count_];
  share.tiles.assign(1, tile_idx);
  share.rows = tile.rows, share.spans = full_spans;
  tile.share = share_count_++, tile.share_row = 0;
}

// Shares of one tile are none, nor are those without room for states.
void AttendPlan::keep_shares_that_fit() {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < share_count_; ++i) {
    const auto floats = [&](size_t spans, size_t rows) {
      return spans * rows * shape_.group * shape_.state_floats;
    };
    AttendShare& share = shares_[i];
    size_t all = floats(share.spans, share.rows);
    for (const uint32_t t : share.tiles) {
      const kernels::SpanRange spans = spans_of(tiles_[t], 0);
      tiles_[t].head_states = floats(spans.end - share.spans, tiles_[t].rows);
      all += tiles_[t].head_states;
    }
    const bool keep = share.tiles.size() > 1 && states_ + all * shape_.kv_heads <= limits_.states;
    for (const uint32_t t : share.tiles) {
      tiles_[t].share = keep ? kept : AttendTile::kAlone;
      if (keep) tiles_[t].states = take_states(tiles_[t].head_states);
      if (!keep) tiles_[t].head_states = 0, tiles_[t].share_row = 0;
    }
    if (!keep) continue;
    share.head_states = floats(share.spans, share.rows);
    share.states = take_states(share.head_states);
    std::swap(shares_[kept++], share);
  }
  share_count_ = kept;
}

void AttendPlan::make_shares(std::span<const Segment> segments, const AttendBlocks& blocks) {
  share_count_ = 0;
  if (blocks.block_tokens == 0 || shape_.window != 0 || shape_.distance_counts) return;
  for (uint32_t t = 0; t < tiles_.size(); ++t) {
    // Spans that end before the row's own: whole, in blocks that nothing writes any more.
    const uint32_t full = tiles_[t].position / kernels::kSpanTokens;
    if (full > 0 && tiles_[t].rows * shape_.group <= kTileQueries / 2) join_share(t, full, segments, blocks);
  }
  keep_shares_that_fit();
}

// Rows of a tile are taken to see alike.
uint64_t AttendPlan::work_of(const AttendPiece& piece) const {
  const AttendTile& tile = tiles_[piece.tile];
  const uint64_t begin = uint64_t{piece.span_begin} * kernels::kSpanTokens;
  const uint64_t end = uint64_t{piece.span_end} * kernels::kSpanTokens;
  if (piece.share != AttendTile::kAlone) return (end - begin) * shares_[piece.share].rows;
  return (std::min<uint64_t>(tile.position + tile.rows, end) -
          std::max(first_seen(tile.position, shape_.window), begin)) *
         tile.rows;
}

size_t AttendPlan::take_states(size_t head_states) {
  const size_t at = states_;
  states_ += head_states * shape_.kv_heads;
  return at;
}

void AttendPlan::add_pieces(AttendPiece piece, kernels::SpanRange spans, size_t step) {
  for (size_t s = spans.begin; s < spans.end; s += step) {
    piece.span_begin = static_cast<uint32_t>(s);
    piece.span_end = static_cast<uint32_t>(std::min(s + step, spans.end));
    piece.work = work_of(piece);
    pieces_.push_back(piece);
  }
}

void AttendPlan::cut_share(uint32_t share_idx, uint64_t longest) {
  const AttendShare& share = shares_[share_idx];
  size_t step = std::max<size_t>(1, longest / (uint64_t{share.rows} * kernels::kSpanTokens));
  const size_t behind = share_count_ - share_idx - 1 + tiles_.size();
  if (pieces_.size() + (share.spans + step - 1) / step + behind > pieces_max_) step = share.spans;
  const size_t pieces = (share.spans + step - 1) / step;
  add_pieces({.tile = share.tiles.front(), .share = share_idx}, {0, share.spans}, step);
  for (const uint32_t t : share.tiles) tiles_[t].pieces += static_cast<uint32_t>(pieces);
}

// Adds the pieces of a tile, none much longer than `longest` if it can be helped. There are at most
// kItemsPerThread * threads cut (tile, KV head) beside those of shares: each is longer than that share of all
// work. Of them come a few more pieces than that share; where memory for them or their states ends, a tile
// stays whole.
void AttendPlan::cut_tile(uint32_t tile_idx, uint64_t longest) {
  AttendTile& tile = tiles_[tile_idx];
  const bool shares = tile.share != AttendTile::kAlone;
  kernels::SpanRange spans = spans_of(tile, shape_.window);
  if (shares) spans.begin = shares_[tile.share].spans;
  const AttendPiece whole{.tile = tile_idx,
                          .span_begin = static_cast<uint32_t>(spans.begin),
                          .span_end = static_cast<uint32_t>(spans.end)};
  const size_t count = spans.end - spans.begin;
  const size_t step = std::max<size_t>(1, longest / (uint64_t{tile.rows} * kernels::kSpanTokens));
  const size_t pieces = (count + step - 1) / step;
  const size_t head_states = count * tile.rows * shape_.group * shape_.state_floats;
  const size_t tiles_behind = tiles_.size() - tile_idx - 1;
  const bool fits = (shares || states_ + head_states * shape_.kv_heads <= limits_.states) &&
                    pieces_.size() + pieces + tiles_behind <= pieces_max_ &&
                    (cut_tiles_ + 1) * shape_.kv_heads <= pieces_left_.size();
  const bool cut = pieces > 1 && fits && work_of(whole) > longest;
  add_pieces(whole, spans, cut ? step : count);
  if (!cut && !shares) return;
  tile.pieces += static_cast<uint32_t>(cut ? pieces : 1) - 1;
  tile.cut = cut_tiles_++;
  if (!shares) tile.head_states = head_states, tile.states = take_states(head_states);
}

void AttendPlan::make_pieces() {
  uint64_t all = 0;
  for (uint32_t t = 0; t < tiles_.size(); ++t) {
    const kernels::SpanRange spans = spans_of(tiles_[t], shape_.window);
    all += work_of({.tile = t,
                    .span_begin = static_cast<uint32_t>(spans.begin),
                    .span_end = static_cast<uint32_t>(spans.end)});
  }
  const uint64_t longest = all * shape_.kv_heads / (kItemsPerThread * limits_.threads);
  pieces_.clear(), cut_tiles_ = 0;
  for (uint32_t i = 0; i < share_count_; ++i) cut_share(i, longest);
  for (uint32_t t = 0; t < tiles_.size(); ++t) cut_tile(t, longest);
  std::sort(pieces_.begin(), pieces_.end(), [](const AttendPiece& a, const AttendPiece& b) {
    if (a.work != b.work) return a.work > b.work;
    return a.tile != b.tile ? a.tile < b.tile : a.span_begin < b.span_begin;
  });
}

void AttendPlan::prepare(std::span<const Segment> segments, const AttendBlocks& blocks,
                         const AttendShape& shape) {
  if (shape != shape_) {
    shape_ = shape, states_ = 0;
    make_tiles(segments);
    make_shares(segments, blocks);
    make_pieces();
  }
  for (const AttendTile& tile : tiles_) {
    if (tile.pieces == 1) continue;
    for (uint32_t h = 0; h < shape.kv_heads; ++h)
      pieces_left_[tile.cut * shape.kv_heads + h].store(tile.pieces, std::memory_order_relaxed);
  }
}

bool AttendPlan::end_piece(const AttendTile& tile, size_t kv_head) {
  return pieces_left_[tile.cut * shape_.kv_heads + kv_head].fetch_sub(1, std::memory_order_acq_rel) == 1;
}

}  // namespace tally::model
