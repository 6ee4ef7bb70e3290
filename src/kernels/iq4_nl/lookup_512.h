#pragma once
// The tile of the 4-bit formats with a table (IQ4_NL, MXFP4) on AVX-512 VNNI: 32 rows x up to 16 tokens.
//
// vpshufb turns the nibbles of a block's 32 rows into unsigned values once, 16 registers (two units x eight
// k-groups of 4), which meet the tokens one after the other as in q4k/scale_min_512.h: one broadcast of four
// activations feeds two vpdpbusd. The offset of the values comes off in the initial accumulator. The f32
// accumulators live in L1. Static, see panel.h; in the namespace of intrin512.h.

#include "kernels/q4k/lanes_512.h"

namespace TALLY_KERNELS_512 {

// The 16 values of a table plus `offset`, in every 128 bits.
static inline __m512i load_table(const int8_t* values, int offset) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
  return _mm512_broadcast_i32x4(_mm_add_epi8(bytes, _mm_set1_epi8(static_cast<char>(offset))));
}

// Format: kUnit in bytes; kValues, int8 [16]; kOffset, which makes them unsigned; scales(unit) of its 16
// rows.
template <class Format>
static void lookup_tile(const TileArgs& args) {
  const __m512i table = load_table(Format::kValues, Format::kOffset), mask = _mm512_set1_epi8(15);
  const size_t tokens = args.tile.tokens;
  __m512 acc[2][kPanelTile];
  for (auto& unit : acc)
    for (size_t t = 0; t < tokens; ++t) unit[t] = _mm512_setzero_ps();
  const auto* block = reinterpret_cast<const uint8_t*>(args.group);
  for (size_t b = 0; b < args.k / 32; ++b, block += 2 * Format::kUnit) {
    const Int32Block x = int32_block(args.tile.bytes, tokens, b);
    for (size_t line = 0; line < 2 * Format::kUnit; line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(block + line + kPrefetchAhead), _MM_HINT_T0);
    __m512i values[2][8];
    __m512 d[2];
    for (size_t u = 0; u < 2; ++u) {
      const uint8_t* unit = block + u * Format::kUnit;
      for (size_t j = 0; j < 4; ++j) {
        const __m512i pair = load_64(unit + 64 * j);
        values[u][j] = _mm512_shuffle_epi8(table, _mm512_and_si512(pair, mask));
        values[u][4 + j] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(pair, 4), mask));
      }
      d[u] = Format::scales(unit);
    }
    for (size_t t = 0; t < tokens; ++t) {
      __m512i sum0 = _mm512_set1_epi32(-Format::kOffset * x.sum[t]), sum1 = sum0;
      for (size_t g = 0; g < 8; ++g) {
        const __m512i four = broadcast_4(x.q + 32 * t + 4 * g);
        sum0 = _mm512_dpbusd_epi32(sum0, values[0][g], four);
        sum1 = _mm512_dpbusd_epi32(sum1, values[1][g], four);
      }
      const __m512 da = _mm512_set1_ps(x.d[t]);
      acc[0][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum0), _mm512_mul_ps(d[0], da), acc[0][t]);
      acc[1][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum1), _mm512_mul_ps(d[1], da), acc[1][t]);
    }
  }
  for (size_t u = 0; u < 2; ++u) store_unit(args, u, acc[u]);
}

template <class Format>
static inline void run_lookup(const LinearArgs& args) {
  const size_t blocks = args.k / 32;
  run_whole_tiles(args, blocks * 2 * Format::kUnit, blocks * kInt32BlockBytes, lookup_tile<Format>);
}

}  // namespace TALLY_KERNELS_512
