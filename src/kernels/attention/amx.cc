// int8 on AMX: sixteen rows at a time, straight from the cache: the packed form of K and V is that of a tile.
//   q.k  a chunk of 16 positions: scores [16 rows][16] = q [16 rows][64 columns] s8 * K [64 columns][16] u8,
//   over
//        blocks of 64 columns (a last block of fewer has tiles of its own shape), from -128 * sum(q)
//   p.v  16 columns: [16 rows][16] = p [16 rows][64 positions] u8 * V [64 positions][16] s8, for either plane
// The softmax between them is the largest part. It runs on sixteen lanes, a row after the other, while the
// tile unit has the products of the next sixteen rows; and sums of p.v are read a step after they are stored,
// as a load right behind a tile's store waits for it. V of a group is copied where blocks are smaller than a
// group. What does not fill sixteen rows takes the form of avx512vnni.cc.
#include "kernels/attention/attention.h"
#include "kernels/attention/int8_planes.h"
#include "kernels/attention/lanes_512.h"
#include "kernels/intrin_amx.h"

namespace TALLY_KERNELS_TIER {
namespace {

using attention::Ahead;
using attention::GroupView;
using attention::kChunkTokens;
using attention::kDimMax;
using attention::kGroupChunks;
using attention::kGroupTokens;
using attention::kMicroRows;
using attention::Micro;
using attention::RowRange;
using attention::Tile;
using attention::unrolled;

struct VnniLanes512 : Lanes512 {
  static TALLY_INLINE I dpbusd(I sum, I u, I s) { return _mm512_dpbusd_epi32(sum, u, s); }
};
using Rest = attention::Int8Planes<VnniLanes512>;

constexpr size_t kTileRows = 16, kTileBytes = 64;
constexpr int kMicros = 4;  // of 4 rows

// Sixteen rows that meet a group.
struct alignas(64) Block {
  float s[kTileRows][kGroupTokens];
  Micro micro[kMicros];  // 4 rows each
  attention::Planes<kTileRows> planes;
  alignas(64) float units[kTileRows];
  size_t row;
};

// q.k on tiles 0..3 (scores of a chunk each), 4 and 5 (q and K), 6 and 7 (their last columns).
void score_tiles(const Tile& tile, const GroupView& g, Tiles& tiles, Block& b) {
  const size_t columns = tile.layout->key_columns, whole = columns / 64 * 64;
  const std::byte* q = tile.memory.q + b.row * columns;
  alignas(64) int32_t start[kTileRows][16];
  for (size_t t = 0; t < kTileRows; ++t)
    _mm512_storeu_si512(start[t], _mm512_set1_epi32(-128 * tile.memory.q_sum[b.row + t]));
  unrolled<kGroupChunks>([&](auto i) { tiles.load<i>(start, kTileBytes); });
  for (size_t c = 0; c < whole; c += 64) {
    tiles.load<4>(q + c, columns);
    unrolled<kGroupChunks>([&](auto i) {
      tiles.load<5>(g.key[i] + 16 * c, kTileBytes);
      tiles.dot_su<i, 4, 5>();
    });
  }
  if (whole < columns) {
    tiles.load<6>(q + whole, columns);
    unrolled<kGroupChunks>([&](auto i) {
      tiles.load<7>(g.key[i] + 16 * whole, kTileBytes);
      tiles.dot_su<i, 6, 7>();
    });
  }
  unrolled<kGroupChunks>([&](auto i) { tiles.store<i>(b.s[0] + kChunkTokens * i, sizeof b.s[0]); });
}

// Scores to the planes of the weights.
template <bool Masked>
void weigh_block(const Tile& tile, const GroupView& g, Block& b) {
  const auto row_of = [&](int i) { return b.row + static_cast<size_t>(kMicroRows * i); };
  for (int i = 0; i < kMicros; ++i) {
    Micro& m = b.micro[i];
    m.s = b.s + kMicroRows * i;
    if constexpr (Masked) attention::see_group<kMicroRows>(tile, g, row_of(i), m);
    attention::score_rows<VnniLanes512, kMicroRows, Masked>(tile, g, row_of(i), m);
  }
  for (int i = 0; i < kMicros; ++i) {
    Micro& m = b.micro[i];
    attention::weigh_rows<VnniLanes512, kMicroRows, Masked>(g, m);
    attention::pack_planes<VnniLanes512>(m, kMicroRows, b.planes.high + kMicroRows * i,
                                         b.planes.low + kMicroRows * i);
    attention::join_group<kMicroRows>(tile, row_of(i), m);
    attention::value_units(m, b.units + kMicroRows * i);
  }
}

// Sums of both planes for 16 columns.
struct alignas(64) Sums {
  int32_t high[kTileRows][16], low[kTileRows][16];
};

void add_sums(const Tile& tile, const Block& b, const Sums& sums, size_t c) {
  const size_t columns = tile.layout->value_columns;
  float* out = tile.memory.span_out + b.row * columns + c;
  for (size_t t = 0; t < kTileRows; ++t, out += columns) {
    const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(_mm512_loadu_si512(sums.high[t]), 7),
                                         _mm512_loadu_si512(sums.low[t]));
    const __m512 keep = _mm512_set1_ps(b.micro[t / kMicroRows].keep[t % kMicroRows]);
    const __m512 add = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_set1_ps(b.units[t]));
    _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_loadu_ps(out), keep, add));
  }
}

// 16 rows of 4 positions, `stride` bytes apart.
struct Values {
  const std::byte* rows;
  size_t stride;
};
// p.v on tiles 4 and 5 (planes), 2 (values), 0 and 1 (sums).
void value_tiles(const Tile& tile, const Values& v, Tiles& tiles, const Block& b) {
  const size_t columns = tile.layout->value_columns;
  Sums sums[2];
  tiles.load<4>(b.planes.high, kTileBytes);
  tiles.load<5>(b.planes.low, kTileBytes);
  for (size_t c = 0; c < columns; c += 16) {
    tiles.load<2>(v.rows + 4 * c, v.stride);
    tiles.zero<0>();
    tiles.dot_us<0, 4, 2>();
    tiles.zero<1>();
    tiles.dot_us<1, 5, 2>();
    tiles.store<0>(sums[c / 16 % 2].high, kTileBytes);
    tiles.store<1>(sums[c / 16 % 2].low, kTileBytes);
    if (c > 0) add_sums(tile, b, sums[(c / 16 + 1) % 2], c - 16);
  }
  add_sums(tile, b, sums[(columns / 16 + 1) % 2], columns - 16);
}

struct Int8Amx {
  static bool prepare(const Tile& tile, size_t row, float* q) { return Rest::prepare(tile, row, q); }
  static void clear(const Tile& tile, size_t row) { Rest::clear(tile, row); }

  // All lines that the tile reads next: V of this group, K of the next.
  static void prefetch_next(const Tile& tile, const GroupView& g, const GroupView& next) {
    attention::prefetch_scales(next);
    const size_t key_bytes = kChunkTokens * tile.layout->key_columns,
                 value_bytes = kChunkTokens * tile.layout->value_columns;
    for (size_t i = 0; i < kGroupChunks; ++i) {
      for (size_t at = 0; at < value_bytes; at += 64) attention::prefetch(g.value[i] + at);
      for (size_t at = 0; at < key_bytes; at += 64) attention::prefetch(next.key[i] + at);
    }
  }

  template <bool Masked>
  static void blocks(const Tile& tile, const GroupView& g, const GroupView& next, RowRange rows) {
    Tiles& tiles = *static_cast<Tiles*>(tile.unit);
    const size_t columns = tile.layout->value_columns, row_bytes = 4 * columns;
    Block block[2];
    alignas(64) std::byte copy[kGroupTokens * kDimMax];
    Values v{g.value[0], row_bytes};
    block[0].row = rows.begin;
    score_tiles(tile, g, tiles, block[0]);
    prefetch_next(tile, g, next);
    bool apart = false;
    for (size_t i = 1; i < kGroupChunks; ++i)
      apart = apart || g.value[i] != g.value[i - 1] + kChunkTokens * columns;
    if (apart) {
      for (size_t i = 0; i < kGroupChunks; ++i)
        __builtin_memcpy(copy + i * kChunkTokens * columns, g.value[i], kChunkTokens * columns);
      v.rows = copy;
    }
    for (size_t i = 0, row = rows.begin; row < rows.end; ++i, row += kTileRows) {
      if (row + kTileRows < rows.end) {
        block[(i + 1) % 2].row = row + kTileRows;
        score_tiles(tile, g, tiles, block[(i + 1) % 2]);
      }
      weigh_block<Masked>(tile, g, block[i % 2]);
      value_tiles(tile, v, tiles, block[i % 2]);
    }
  }

  static void groups(const Tile& tile, const GroupView* views, size_t n, RowRange rows) {
    if (n > 1) return Rest::groups(tile, views, n, rows);
    const GroupView &g = views[0], &next = views[1];
    const size_t end = rows.begin + (rows.end - rows.begin) / kTileRows * kTileRows;
    const RowRange whole{rows.begin, end};
    if (whole.begin < whole.end) {
      if (attention::all_see(tile, g, whole))
        blocks<false>(tile, g, next, whole);
      else
        blocks<true>(tile, g, next, whole);
    }
    Rest::groups(tile, views, n, {end, rows.end});
  }
};

}  // namespace

void attend_int8_amx(const AttendArgs& args) {
  if (args.tokens * args.group < kTileRows) return attention::attend_tiles<Rest>(args);
  TileConfig config;
  const size_t last = args.kv.layout->key_columns % 64;
  for (size_t i = 0; i < 8; ++i) config.shape(i, kTileRows, kTileBytes);
  if (last != 0) config.shape(6, kTileRows, last), config.shape(7, last / 4, kTileBytes);
  Tiles tiles(config);
  attention::attend_tiles<Int8Amx>(args, &tiles);
}

}  // namespace TALLY_KERNELS_TIER
