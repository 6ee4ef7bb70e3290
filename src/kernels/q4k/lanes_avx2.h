#pragma once
// AVX2 steps that the K-quant kernels share: 8 rows in 32-bit lanes, a slice being 8 of a group's 32 rows.
// Static, see panel.h.

#include "kernels/linear_loop.h"

#include <immintrin.h>

namespace tally::kernels {

constexpr size_t kSlices = 4;

// Bytes ahead of its use that weights are asked for: enough to cover DRAM latency, near enough to stay in L1
// until then.
constexpr size_t kPrefetchAhead = 4096;

static inline __m256i load_32(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
static inline __m128i load_8(const uint8_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}

// Four bytes of k, or a pair of 16-bit values, to every row.
static inline __m256i broadcast_4(const void* p) {
  int v;
  __builtin_memcpy(&v, p, 4);
  return _mm256_set1_epi32(v);
}

static inline __m256 load_half(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

// Step `i` of a block's 32 (8 sub-blocks x 4 slices) asks for its share of what lies kPrefetchAhead behind
// `block`.
template <size_t kUnitBytes>
static inline void prefetch_step(const uint8_t* block, size_t i) {
  constexpr size_t kShare = kUnitBytes / 16;
  const uint8_t* p = block + kPrefetchAhead + i * kShare;
  for (size_t offset = 0; offset < kShare; offset += 64)
    _mm_prefetch(reinterpret_cast<const char*>(p + offset), _MM_HINT_T0);
}

// Writes slice `s` of every token; rows that do not exist are left alone.
static inline void store_slice(const TileArgs& args, size_t s, const __m256* acc) {
  if (args.rows <= 8 * s) return;
  const size_t rows = args.rows - 8 * s;
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(rows < 8 ? rows : 8)), lanes);
  for (size_t t = 0; t < args.tile.tokens; ++t) {
    float* out = args.out + t * args.out_stride + 8 * s;
    if (rows >= 8)
      _mm256_storeu_ps(out, acc[t]);
    else
      _mm256_maskstore_ps(out, mask, acc[t]);
  }
}

// Runs one kernel over tiles of up to 16 tokens, whatever their number.
static inline void run_panel_tiles(const LinearArgs& args, size_t unit_bytes, TileFn tile) {
  const TileFn tiles[kPanelTile] = {tile, tile, tile, tile, tile, tile, tile, tile,
                                    tile, tile, tile, tile, tile, tile, tile, tile};
  const size_t blocks = args.k / 256;
  run_tiles(args, {blocks * 2 * unit_bytes, blocks * kInt256BlockBytes, tiles, kPanelTile});
}

}  // namespace tally::kernels
