#pragma once
// The loops around a linear kernel: which weights meet which tokens when. Static functions, see panel.h.

#include "kernels/kernels.h"
#include "kernels/panel.h"

#include <xmmintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tally::kernels {

// One weight group under the tokens of up to two neighbouring panel tiles, of which only the first must
// exist.
struct TileArgs {
  const std::byte* group;
  PanelTile tile, next;
  size_t k;
  float* out;  // element [first token][first row]
  size_t out_stride;
  size_t rows;  // of the group that exist: 1..32
  size_t prefetch;  // bytes ahead (LinearTuning)
  bool stream;      // whole registers of the output are aligned and go past the caches
};
using TileFn = void (*)(const TileArgs&);

struct TileLoop {
  size_t group_bytes;
  size_t token_bytes;  // of the panel
  TileFn tile;
  size_t tiles;  // that it takes at once: 1 or 2
};

// Part `i` of `n` tokens cut into `parts` nearly equal pieces begins here.
static inline size_t part_begin(size_t n, size_t parts, size_t i) { return n * i / parts; }

// An output that no cache keeps until it is read would be fetched only to be overwritten.
inline constexpr size_t kStreamBytes = size_t{8} << 20;
static inline bool streams_out(const LinearArgs& a) {
  return a.tokens * a.out_stride * sizeof(float) >= kStreamBytes && a.out_stride % 16 == 0 &&
         reinterpret_cast<uintptr_t>(a.out) % 64 == 0;
}

// Order: token chunks whose panel stays in L2, under each the groups, so that a group is read from memory
// once a chunk and from L1 or L2 for every further tile.
static inline void run_tiles(const LinearArgs& a, const TileLoop& loop) {
  const size_t tiles = (a.tokens + kPanelTile - 1) / kPanelTile;
  const size_t step = loop.tiles * kPanelTile * loop.token_bytes;
  const size_t chunk = a.tuning.chunk_bytes > step ? a.tuning.chunk_bytes / step * loop.tiles : loop.tiles;
  const bool stream = streams_out(a);
  for (size_t chunk_begin = 0; chunk_begin < tiles; chunk_begin += chunk) {
    const size_t chunk_end = chunk_begin + chunk < tiles ? chunk_begin + chunk : tiles;
    for (size_t group = a.group_begin; group < a.group_end; ++group) {
      const size_t row = group * kGroupRows;
      const size_t rows = a.rows - row < kGroupRows ? a.rows - row : kGroupRows;
      for (size_t i = chunk_begin; i < chunk_end; i += loop.tiles) {
        PanelTile next{};
        if (i + 1 < chunk_end && loop.tiles == 2)
          next = panel_tile(a.panel, a.tokens, loop.token_bytes, i + 1);
        loop.tile({a.weights + group * loop.group_bytes, panel_tile(a.panel, a.tokens, loop.token_bytes, i),
                   next, a.k, a.out + i * kPanelTile * a.out_stride + row, a.out_stride, rows,
                   a.tuning.prefetch_bytes, stream});
      }
    }
  }
  if (stream) _mm_sfence();  // before anybody is told that the output is there
}

// The definition's loop: row(group, lane, tile, acc) adds row `lane` times every token of the tile to
// acc[16], which begins as 0.
template <class Row>
static inline void each_row(const LinearArgs& a, size_t group_bytes, size_t token_bytes, Row row) {
  for (size_t group = a.group_begin; group < a.group_end; ++group)
    for (size_t lane = 0; lane < kGroupRows && group * kGroupRows + lane < a.rows; ++lane)
      for (size_t begin = 0; begin < a.tokens; begin += kPanelTile) {
        const PanelTile tile = panel_tile(a.panel, a.tokens, token_bytes, begin / kPanelTile);
        float acc[kPanelTile] = {};
        row(a.weights + group * group_bytes, lane, tile, acc);
        for (size_t t = 0; t < tile.tokens; ++t)
          a.out[(begin + t) * a.out_stride + group * kGroupRows + lane] = acc[t];
      }
}

// Exact integer product of one block of 32.
static inline int32_t dot32(const int8_t* w, const int8_t* x) {
  int32_t sum = 0;
  for (size_t i = 0; i < 32; ++i) sum += w[i] * x[i];
  return sum;
}

}  // namespace tally::kernels
