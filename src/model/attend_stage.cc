#include "model/attend_stage.h"

#include "model/program.h"
#include "model/scratch.h"

#include <algorithm>

namespace tally::model {
namespace {

constexpr uint32_t kTileRows = 32;     // rows of a tile, if they are enough for all threads
constexpr uint32_t kTileQueries = 32;  // query heads that the kernels take together: a tile has no fewer rows
constexpr size_t kItemsPerThread = 4;  // so many even out what is left at the end of a stage
constexpr size_t kPiecesPerThread = 32;  // behind the first of each tile; see cut()
// States are kept for so many rows at full context, but not for so many that they count beside the weights.
constexpr size_t kStateRows = 32, kStateFloatsMax = size_t{4} << 20;

uint32_t first_seen(uint32_t position, uint32_t window) {
  return window == 0 || position < window ? 0 : position + 1 - window;
}

// Keys of the spans [begin, end) that rows of a tile meet, nearly: rows are taken to see alike.
uint64_t work_of(const AttendTile& tile, uint32_t window, kernels::SpanRange spans) {
  const uint64_t first =
      std::max<uint64_t>(first_seen(tile.position, window), spans.begin * kernels::kSpanTokens);
  const uint64_t end = std::min<uint64_t>(tile.position + tile.rows, spans.end * kernels::kSpanTokens);
  return (end - first) * tile.rows;
}

kernels::SpanRange spans_of(const AttendTile& tile, uint32_t window) {
  return kernels::attend_spans(tile.position, tile.rows, window);
}

AttendPiece piece_of(uint32_t tile_idx, const AttendTile& tile, uint32_t window, kernels::SpanRange spans) {
  return {tile_idx, static_cast<uint32_t>(spans.begin), static_cast<uint32_t>(spans.end),
          work_of(tile, window, spans)};
}

}  // namespace

AttendPlan::AttendPlan(size_t rows_max, size_t threads, size_t states_max)
    : threads_(threads),
      states_max_(states_max),
      pieces_max_(rows_max + kPiecesPerThread * threads),
      pieces_left_(kItemsPerThread * threads) {
  tiles_.reserve(rows_max);
  pieces_.reserve(pieces_max_);
}

void AttendPlan::make_tiles(std::span<const Segment> segments) {
  size_t rows = 0;
  for (const Segment& s : segments) rows += s.rows;
  uint32_t tile_rows = kTileRows;
  while (tile_rows / 2 * shape_.group >= kTileQueries &&
         rows / tile_rows * shape_.kv_heads < kItemsPerThread * threads_)
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

// Adds the pieces of a tile, none much longer than `longest` if it can be helped. There are at most
// kItemsPerThread * threads cut (tile, KV head): each is longer than that share of all work. Of them come a
// few more pieces than that share; where memory for them or their states ends, a tile stays whole.
void AttendPlan::cut(uint32_t tile_idx, uint64_t longest) {
  AttendTile& tile = tiles_[tile_idx];
  const kernels::SpanRange spans = spans_of(tile, shape_.window);
  const size_t count = spans.end - spans.begin;
  const size_t step = std::max<size_t>(1, longest / (uint64_t{tile.rows} * kernels::kSpanTokens));
  const size_t pieces = (count + step - 1) / step;
  const size_t head_states = count * tile.rows * shape_.group * shape_.state_floats;
  const size_t tiles_behind = tiles_.size() - tile_idx - 1;
  const bool fits = states_ + head_states * shape_.kv_heads <= states_max_ &&
                    pieces_.size() + pieces + tiles_behind <= pieces_max_ &&
                    (cut_tiles_ + 1) * shape_.kv_heads <= pieces_left_.size();
  if (pieces < 2 || !fits || work_of(tile, shape_.window, spans) <= longest) {
    pieces_.push_back(piece_of(tile_idx, tile, shape_.window, spans));
    return;
  }
  tile.pieces = static_cast<uint32_t>(pieces), tile.cut = cut_tiles_++;
  tile.states = states_, tile.head_states = head_states;
  states_ += head_states * shape_.kv_heads;
  for (size_t s = spans.begin; s < spans.end; s += step)
    pieces_.push_back(piece_of(tile_idx, tile, shape_.window, {s, std::min(s + step, spans.end)}));
}

void AttendPlan::prepare(std::span<const Segment> segments, const AttendShape& shape) {
  if (shape != shape_) {
    shape_ = shape;
    make_tiles(segments);
    uint64_t all = 0;
    for (const AttendTile& tile : tiles_) all += work_of(tile, shape.window, spans_of(tile, shape.window));
    pieces_.clear(), cut_tiles_ = 0, states_ = 0;
    for (uint32_t t = 0; t < tiles_.size(); ++t) cut(t, all * shape.kv_heads / (kItemsPerThread * threads_));
    std::sort(pieces_.begin(), pieces_.end(), [](const AttendPiece& a, const AttendPiece& b) {
      if (a.work != b.work) return a.work > b.work;
      return a.tile != b.tile ? a.tile < b.tile : a.span_begin < b.span_begin;
    });
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

size_t attend_states_max(const Program& program, const StepLimits& limits, size_t threads) {
  if (threads == 1 || limits.standard_attention) return 0;
  size_t row = 0;  // floats of one row at full context
  for (const LayerAttention& at : program.attention) {
    if (at.kv_heads >= kItemsPerThread * threads) continue;  // no item is longer than its share
    const size_t seen = at.window == 0 ? limits.context_max : std::min(limits.context_max, at.window);
    // A window begins anywhere in a span.
    const size_t spans = (seen + kernels::kSpanTokens - 1) / kernels::kSpanTokens + (at.window == 0 ? 0 : 1);
    if (spans >= 2) row = std::max(row, spans * at.heads * kernels::attend_state_floats(program.value_dim));
  }
  return std::max(row, std::min(kStateRows * row, kStateFloatsMax));
}

size_t begin_attend(const Program& program, const StepContext& step, const Instruction& in) {
  const LayerAttention& at = program.attention[in.layer];
  AttendPlan& plan = step.scratch->attend;
  plan.prepare(step.batch->segments, {.kv_heads = at.kv_heads,
                                      .group = at.heads / at.kv_heads,
                                      .window = at.window,
                                      .state_floats = kernels::attend_state_floats(program.value_dim)});
  return plan.pieces().size() * at.kv_heads;
}

void attend_item(const Program& program, const StepContext& step, const Instruction& in, size_t item,
                 size_t worker) {
  Scratch::State& s = *step.scratch;
  const LayerAttention& at = program.attention[in.layer];
  const AttendPiece& piece = s.attend.pieces()[item / at.kv_heads];
  const AttendTile& tile = s.attend.tiles()[piece.tile];
  const size_t head = item % at.kv_heads, group = at.heads / at.kv_heads;
  const size_t q_width = program.width_of(in.src), out_width = program.width_of(in.dst);
  kernels::AttendArgs args;
  args.kv = step.sequence(in.layer, step.batch->segments[tile.segment]);
  args.kv_head = head, args.group = group;
  args.q = s.buf(in.src) + tile.row_begin * q_width + head * group * program.key_dim;
  args.q_stride = q_width;
  args.tokens = tile.rows, args.position = tile.position;
  args.window = at.window, args.score_scale = program.score_scale, args.softcap = program.softcap;
  args.sinks = at.sinks == nullptr ? nullptr : at.sinks + head * group;
  args.alibi = at.alibi.empty() ? nullptr : at.alibi.data() + head * group;
  args.out = s.buf(in.dst) + tile.row_begin * out_width + head * group * program.value_dim;
  args.out_stride = out_width;
  args.scratch = s.worker(worker);
  args.nonfinite = s.worker_nonfinite.data() + worker * s.limits.rows_max + tile.row_begin;
  const kernels::AttentionKernels& codec = step.kernels->attention_for(args.kv.layout->codec);
  if (s.limits.standard_attention) return kernels::attend_standard(args, codec);

  if (tile.pieces == 1) return codec.attend(args);
  kernels::AttendCut cut{.states = s.attend_states() + tile.states + head * tile.head_states,
                         .span_begin = piece.span_begin,
                         .span_end = piece.span_end};
  args.cut = &cut;
  codec.attend(args);
  if (!s.attend.end_piece(tile, head)) return;
  cut.merge = true;
  codec.attend(args);
}

}  // namespace tally::model
