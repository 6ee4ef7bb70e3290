#pragma once
// How a SIMD form walks the cache: a tile of consecutive tokens (all heads of the group) passes over K and V
// together, group by group, so each K and V byte is loaded once for many rows. Rows are token-major: row =
// token * group + head. What a row gets does not depend on its tile: every step below is per row, and a row
// skips what it does not see by position only. Everything has internal linkage (objects of every ISA include
// this file).

#include "kernels/attention/arithmetic.h"
#include "kernels/attention/codec.h"
#include "kernels/attention/cut.h"
#include "kernels/kernels.h"

namespace tally::kernels::attention {
namespace {

// Rows a tile aims at: its states (O and q) stay in the first caches beside one group of K and V.
constexpr size_t kTileRows = 32;

// Tokens of a tile: at least kTileRows rows, and a multiple of 4 rows so that micro tiles of 4 come out even.
inline size_t tile_tokens(size_t group) {
  const size_t unit = group % 4 == 0 ? 1 : group % 2 == 0 ? 2 : 4;
  return (kTileRows + unit * group - 1) / (unit * group) * unit;
}

// Softmax state of each row, and its query as the form wants it.
struct TileMemory {
  std::byte* q;                                        // [rows][4 * key_columns] bytes
  float* span_out;                                     // [rows][value_columns]
  float* total_out;                                    // [rows][value_columns]
  float *span_max, *span_sum, *total_max, *total_sum;  // [rows]
  float* q_scale;                                      // [rows]: of a dot product, to base 2
  int32_t* q_sum;                                      // [rows]: sum of q8
  uint8_t* refused;                                    // [tokens]: the token's q is not finite
  size_t bytes;
};

inline TileMemory tile_memory(const tensor::KvLayout& l, size_t group, std::byte* at) {
  const size_t tokens = tile_tokens(group), rows = tokens * group;
  const auto aligned = [](size_t n) { return (n + 63) & ~size_t{63}; };
  size_t used = 0;
  const auto take = [&](size_t n) {
    std::byte* p = at == nullptr ? nullptr : at + used;
    used += aligned(n);
    return p;
  };
  TileMemory m{};
  m.q = take(rows * l.key_columns * 4);
  m.span_out = reinterpret_cast<float*>(take(rows * l.value_columns * 4));
  m.total_out = reinterpret_cast<float*>(take(rows * l.value_columns * 4));
  for (float** p : {&m.span_max, &m.span_sum, &m.total_max, &m.total_sum, &m.q_scale})
    *p = reinterpret_cast<float*>(take((rows + 3) * 4));  // four rows' are read together
  m.q_sum = reinterpret_cast<int32_t*>(take(rows * 4));
  m.refused = reinterpret_cast<uint8_t*>(take(tokens));
  m.bytes = used;
  return m;
}

struct Tile {
  const AttendArgs* args;
  const tensor::KvLayout* layout;
  TileMemory memory;
  size_t first_token;  // in the call
  size_t tokens, rows;
  size_t position;  // of first_token
  float base2;      // score_scale * log2 e
  Softcap cap;
  void* unit;  // what a form holds during a call, or nothing

  size_t row_position(size_t row) const { return position + row / args->group; }
};

// The 64 positions of a group: 4 chunks of 16, each contiguous in K and in V.
struct GroupView {
  size_t position;  // of its first token
  const std::byte *key[kGroupChunks], *value[kGroupChunks];
  const float *key_scale[kGroupChunks], *value_scale[kGroupChunks];  // int8 only
};

// Chunks outside [first, end) may not be in the table at all: they are shown as the nearest chunk inside, and
// no row sees them.
inline GroupView group_view(const AttendArgs& args, size_t position, size_t first, size_t end) {
  const tensor::KvLayout& l = *args.kv.layout;
  const size_t key_bytes = l.value_offset / l.block_tokens;  // of a token
  const size_t value_bytes = (l.tail_offset - l.value_offset) / l.block_tokens;
  GroupView g;
  g.position = position;
  for (size_t i = 0; i < kGroupChunks; ++i) {
    size_t at = position + i * kChunkTokens;
    const size_t lowest = first / kChunkTokens * kChunkTokens,
                 highest = (end - 1) / kChunkTokens * kChunkTokens;
    at = at < lowest ? lowest : at > highest ? highest : at;
    const TokenPlace p = token_place(args.kv, at, args.kv_head);
    g.key[i] = p.head_block + p.token * key_bytes;
    g.value[i] = p.head_block + l.value_offset + p.token * value_bytes;
    g.key_scale[i] = key_scales(l, p.head_block) + p.token;
    g.value_scale[i] = value_scales(l, p.head_block) + p.token;
  }
  return g;
}

// Which of a group's 64 positions a row sees: [begin, end).
struct Visible {
  int begin, end;
};
inline Visible visible_in(const Tile& tile, size_t row, size_t group_position) {
  const size_t p = tile.row_position(row), first = first_visible(p, tile.args->window);
  const size_t end = p + 1 - group_position;
  return {first > group_position ? static_cast<int>(first - group_position) : 0,
          end < kGroupTokens ? static_cast<int>(end) : static_cast<int>(kGroupTokens)};
}

// True if every row of the tile sees all of [begin, end).
inline bool all_see(const Tile& tile, size_t begin, size_t end) {
  const size_t last = tile.position + tile.tokens - 1;
  return end <= tile.position + 1 && first_visible(last, tile.args->window) <= begin;
}

// Where rows are few, a pass takes two groups, so that the steps of one hide behind those of the other;
// unless their keys and values, and what is fetched meanwhile, would not stay in the first cache.
constexpr size_t kFewRows = 4, kGroupsTogether = 2, kTogetherBytes = 28 << 10;
inline size_t groups_together(const Tile& tile, size_t at, size_t stop) {
  const size_t both = 2 * kGroupTokens,
               bytes = tile.layout->head_block_bytes / tile.layout->block_tokens * both;
  return tile.rows <= kFewRows && bytes <= kTogetherBytes && at + both <= stop && all_see(tile, at, at + both)
             ? kGroupsTogether
             : 1;
}

struct RowRange {
  size_t begin, end;
};
// The rows of the tile that see any of [first, end): consecutive, for both borders move with the position.
inline RowRange rows_seeing(const Tile& tile, size_t first, size_t end) {
  size_t a = 0, b = tile.tokens;
  while (a < b && tile.position + a < first) ++a;
  while (b > a && first_visible(tile.position + b - 1, tile.args->window) >= end) --b;
  return {a * tile.args->group, b * tile.args->group};
}

// Copies one head of q behind zeros up to the stored columns.
inline void load_query(const Tile& tile, size_t row, float* q) {
  const size_t token = row / tile.args->group, head = row % tile.args->group, dim = tile.layout->key_dim;
  const float* from = tile.args->q + (tile.first_token + token) * tile.args->q_stride + head * dim;
  for (size_t c = 0; c < dim; ++c) q[c] = from[c];
  for (size_t c = dim; c < tile.layout->key_columns; ++c) q[c] = 0;
}

inline SpanState span_state(const Tile& tile, size_t row) {
  const TileMemory& m = tile.memory;
  return {m.span_max + row, m.span_sum + row, m.span_out + row * tile.layout->value_columns};
}
inline SpanState kept_state_of(const Tile& tile, size_t span, size_t row) {
  return kept_state(*tile.args, span / kSpanTokens, tile.first_token * tile.args->group + row);
}

// `span` is the position of its first token.
inline void keep_span(const Tile& tile, size_t row, size_t span) {
  const SpanState from = span_state(tile, row), to = kept_state_of(tile, span, row);
  *to.max = *from.max;
  *to.sum = tile.memory.refused[row / tile.args->group] != 0 ? 0.f : *from.sum;
  for (size_t c = 0; c < tile.layout->value_dim; ++c) to.out[c] = from.out[c];
}

inline void merge_span(const Tile& tile, size_t row, size_t span, const SpanState& state) {
  const TileMemory& m = tile.memory;
  const size_t dim = tile.layout->value_dim;
  float* total = m.total_out + row * tile.layout->value_columns;
  if (first_visible(tile.row_position(row), tile.args->window) >= span) {
    m.total_max[row] = *state.max, m.total_sum[row] = *state.sum;
    for (size_t c = 0; c < dim; ++c) total[c] = state.out[c];
    return;
  }
  const float max = *state.max > m.total_max[row] ? *state.max : m.total_max[row];
  const float ca = exp2_nonpositive(m.total_max[row] - max), cb = exp2_nonpositive(*state.max - max);
  m.total_sum[row] = __builtin_fmaf(m.total_sum[row], ca, *state.sum * cb);
  m.total_max[row] = max;
  for (size_t c = 0; c < dim; ++c) total[c] = __builtin_fmaf(total[c], ca, state.out[c] * cb);
}

template <class Form>
inline void finish_row(const Tile& tile, size_t row) {
  const size_t token = row / tile.args->group, head = row % tile.args->group, dim = tile.layout->value_dim;
  float* out = tile.args->out + (tile.first_token + token) * tile.args->out_stride + head * dim;
  if (tile.memory.refused[token] != 0) {
    for (size_t c = 0; c < dim; ++c) out[c] = 0;
    return;
  }
  float* total = tile.memory.total_out + row * tile.layout->value_columns;
  float sum = tile.memory.total_sum[row];
  if (tile.args->sinks != nullptr) {
    const float keep = join_sink(tile.args->sinks[head], &tile.memory.total_max[row], &sum);
    for (size_t c = 0; c < dim; ++c) total[c] = total[c] * keep;
  }
  const float inverse = 1.f / sum;
  for (size_t c = 0; c < dim; ++c) total[c] = total[c] * inverse;
  if constexpr (requires { Form::rotate_back(tile, total); }) Form::rotate_back(tile, total);
  for (size_t c = 0; c < dim; ++c) out[c] = total[c];
}

// What a Form offers (static):
//   bool prepare(const Tile&, size_t row, float* q)   makes the row's query in memory.q; false if not finite
//   void clear(const Tile&, size_t row)               a query of zeros
//   void groups(const Tile&, const GroupView* g, size_t n, RowRange)   adds n groups to the states; behind
//   them
//                                                     are the n that come next. n > 1 where kFewRows at most
//                                                     see them, in whole
//   void rotate_back(const Tile&, float* out)         if values are stored rotated: out [value_columns] as it
//   was before
template <class Form>
void prepare_tile(const Tile& tile) {
  alignas(64) float q[kDimMax];
  for (size_t t = 0; t < tile.tokens; ++t) {
    bool finite = true;
    for (size_t row = t * tile.args->group; row < (t + 1) * tile.args->group; ++row) {
      load_query(tile, row, q);
      finite = Form::prepare(tile, row, q) && finite;
    }
    tile.memory.refused[t] = finite ? 0 : 1;
    if (finite) continue;
    if (tile.args->nonfinite != nullptr) tile.args->nonfinite[tile.first_token + t] = 1;
    for (size_t row = t * tile.args->group; row < (t + 1) * tile.args->group; ++row) Form::clear(tile, row);
  }
}

template <class Form>
void attend_span(const Tile& tile, size_t span, size_t first, size_t end) {
  const TileMemory& m = tile.memory;
  const size_t columns = tile.layout->value_columns, span_end = span + kSpanTokens;
  const RowRange rows = rows_seeing(tile, span, span_end);
  for (size_t row = rows.begin; row < rows.end; ++row) m.span_max[row] = kNoScore, m.span_sum[row] = 0;
  for (size_t i = rows.begin * columns; i < rows.end * columns; ++i) m.span_out[i] = 0;

  const size_t stop = end < span_end ? end : span_end;
  size_t at = (first > span ? first : span) / kGroupTokens * kGroupTokens;
  for (size_t n = 0; at < stop; at += n * kGroupTokens) {
    n = groups_together(tile, at, stop);
    // Those of this pass, and as many that come next; the last one in place of what is behind the end.
    GroupView views[2 * kGroupsTogether];
    for (size_t i = 0; i < 2 * n; ++i) {
      const size_t position = at + i * kGroupTokens;
      views[i] = i == 0 || position < end ? group_view(*tile.args, position, first, end) : views[i - 1];
    }
    Form::groups(tile, views, n, rows_seeing(tile, at, at + n * kGroupTokens));
  }
  for (size_t row = rows.begin; row < rows.end; ++row) {
    if (tile.args->cut == nullptr)
      merge_span(tile, row, span, span_state(tile, row));
    else
      keep_span(tile, row, span);
  }
}

// Asks for the keys of the first group while queries are prepared; each group asks for what follows it.
inline void prefetch_first_keys(const Tile& tile, size_t first, size_t end) {
  const GroupView g = group_view(*tile.args, first / kGroupTokens * kGroupTokens, first, end);
  const size_t chunk_bytes = tile.layout->value_offset / tile.layout->block_tokens * kChunkTokens;
  for (const std::byte* chunk : g.key)
    for (size_t i = 0; i < chunk_bytes; i += 64) __builtin_prefetch(chunk + i);
}

template <class Form>
void attend_spans_of_part(const Tile& tile, PositionRange seen) {
  const auto [first, end] = positions_of_part(*tile.args, seen);
  if (first >= end) return;
  prefetch_first_keys(tile, first, end);
  prepare_tile<Form>(tile);
  for (size_t span = first / kSpanTokens * kSpanTokens; span < end; span += kSpanTokens)
    attend_span<Form>(tile, span, first, end);
}

// What all parts kept.
inline void merge_kept_spans(const Tile& tile, PositionRange seen) {
  for (size_t span = seen.first / kSpanTokens * kSpanTokens; span < seen.end; span += kSpanTokens) {
    const RowRange rows = rows_seeing(tile, span, span + kSpanTokens);
    for (size_t row = rows.begin; row < rows.end; ++row)
      merge_span(tile, row, span, kept_state_of(tile, span, row));
  }
  for (size_t t = 0; t < tile.tokens; ++t)
    tile.memory.refused[t] = tile.memory.total_sum[t * tile.args->group] == 0 ? 1 : 0;
}

template <class Form>
void attend_tiles(const AttendArgs& args, void* unit = nullptr) {
  Tile tile{.args = &args,
            .layout = args.kv.layout,
            .memory = tile_memory(*args.kv.layout, args.group, args.scratch),
            .first_token = 0,
            .tokens = 0,
            .rows = 0,
            .position = 0,
            .base2 = base2_scale(args.score_scale),
            .cap = make_softcap(args.softcap),
            .unit = unit};
  for (; tile.first_token < args.tokens; tile.first_token += tile.tokens) {
    const size_t left = args.tokens - tile.first_token, most = tile_tokens(args.group);
    tile.tokens = left < most ? left : most;
    tile.rows = tile.tokens * args.group;
    tile.position = args.position + tile.first_token;
    const PositionRange seen = {first_visible(tile.position, args.window), tile.position + tile.tokens};
    if (is_merge(args))
      merge_kept_spans(tile, seen);
    else
      attend_spans_of_part<Form>(tile, seen);
    if (args.cut == nullptr || is_merge(args))
      for (size_t row = 0; row < tile.rows; ++row) finish_row<Form>(tile, row);
  }
}

}  // namespace
}  // namespace tally::kernels::attention
