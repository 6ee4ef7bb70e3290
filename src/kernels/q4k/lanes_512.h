#pragma once
// AVX-512 steps that the K-quant kernels share: the 16 rows of a unit in 32-bit lanes, the two units of a
// group side by side. Static, see panel.h; in the namespace of intrin512.h.

#include "kernels/intrin512.h"
#include "kernels/linear_loop.h"

namespace TALLY_KERNELS_512 {

// Bytes ahead of its use that weights are asked for.
constexpr size_t kPrefetchAhead = 8192;

static inline __m512i load_64(const uint8_t* p) { return _mm512_loadu_si512(p); }
static inline __m128i load_16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// Four bytes of k, or a pair of 16-bit values, to every row.
static inline __m512i broadcast_4(const void* p) {
  int v;
  __builtin_memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}

static inline __m512 load_half(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Sub-block `i` of a block's 8 asks for its share of what lies kPrefetchAhead behind `block`.
template <size_t kUnitBytes>
static inline void prefetch_step(const uint8_t* block, size_t i) {
  constexpr size_t kShare = kUnitBytes / 4;
  const uint8_t* p = block + kPrefetchAhead + i * kShare;
  for (size_t offset = 0; offset < kShare; offset += 64)
    _mm_prefetch(reinterpret_cast<const char*>(p + offset), _MM_HINT_T0);
}

// Writes rows 16 * half .. of every token; rows that do not exist are left alone.
static inline void store_unit(const TileArgs& args, size_t half, const __m512* acc) {
  if (args.rows <= 16 * half) return;
  const size_t rows = args.rows - 16 * half;
  const auto mask = static_cast<__mmask16>(rows < 16 ? (1u << rows) - 1u : 0xFFFFu);
  for (size_t t = 0; t < args.tile.tokens; ++t)
    _mm512_mask_storeu_ps(args.out + t * args.out_stride + 16 * half, mask, acc[t]);
}

// Runs one kernel over tiles of up to 16 tokens, whatever their number.
static inline void run_panel_tiles(const LinearArgs& args, size_t unit_bytes, TileFn tile) {
  const TileFn tiles[kPanelTile] = {tile, tile, tile, tile, tile, tile, tile, tile,
                                    tile, tile, tile, tile, tile, tile, tile, tile};
  const size_t blocks = args.k / 256;
  run_tiles(args, {blocks * 2 * unit_bytes, blocks * kInt256BlockBytes, tiles, kPanelTile});
}

}  // namespace TALLY_KERNELS_512
