#pragma once
// The AVX-512 VNNI loop of the formats with blocks of 32: a tile is 32 rows x T tokens, one lane a row, one
// register 16 rows.
//
// vpdpbusd multiplies unsigned weights with signed activations, four k a lane; one broadcast of an activation
// feeds both row halves. A Format gives the exact integer products of one block of both units and where its
// scales lie. Static functions, see panel.h; code stands in TALLY_KERNELS_512, see intrin512.h.

#include "kernels/intrin512.h"
#include "kernels/linear_loop.h"

namespace TALLY_KERNELS_512 {

#define TALLY_INLINE __attribute__((always_inline))

// As in block32_avx2.h.
constexpr size_t kPrefetchAhead = 8192;

static inline TALLY_INLINE __m512i load512(const void* p) { return _mm512_loadu_si512(p); }

// Sixteen f16 as f32.
static inline TALLY_INLINE __m512 load_f16(const void* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
}

// Four int8 in every lane.
static inline TALLY_INLINE __m512i broadcast4(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return _mm512_set1_epi32(four);
}

// out [token][row] from acc [16 rows][token].
template <size_t T>
static inline TALLY_INLINE void store_tile(const TileArgs& a, const __m512 (&acc)[2][T]) {
  const uint32_t mask = a.rows >= kGroupRows ? ~uint32_t{0} : (uint32_t{1} << a.rows) - 1;
#pragma GCC unroll 8
  for (size_t t = 0; t < T; ++t) {
    float* out = a.out + t * a.out_stride;
    _mm512_mask_storeu_ps(out, static_cast<__mmask16>(mask & 0xFFFF), acc[0][t]);
    _mm512_mask_storeu_ps(out + 16, static_cast<__mmask16>(mask >> 16), acc[1][t]);
  }
}

// Format: kUnit, kScale, kMin (0: none) in bytes; dot<T>(unit, x, c): adds the integer products of both units
// to c[half][token]. c begins as -kOffset times the sum of the activations.
template <class Format, size_t T>
static void tile_avx512(const TileArgs& a) {
  __m512 acc[2][T];
#pragma GCC unroll 8
  for (size_t i = 0; i < 2; ++i)
#pragma GCC unroll 8
    for (size_t t = 0; t < T; ++t) acc[i][t] = _mm512_setzero_ps();

  const uint8_t* unit = reinterpret_cast<const uint8_t*>(a.group);
  for (size_t b = 0; b < a.k / 32; ++b, unit += 2 * Format::kUnit) {
    Int32Block x = int32_block(a.tile.bytes, a.tile.tokens, b);
    x.q += 32 * a.first, x.d += a.first, x.sum += a.first;
    for (size_t line = 0; line < 2 * Format::kUnit; line += 64)
      _mm_prefetch(reinterpret_cast<const char*>(unit + line + kPrefetchAhead), _MM_HINT_T0);
    __m512i c[2][T];
#pragma GCC unroll 8
    for (size_t t = 0; t < T; ++t) c[0][t] = c[1][t] = _mm512_set1_epi32(-Format::kOffset * x.sum[t]);
    Format::template dot<T>(unit, x, c);
    const __m512 d[2] = {load_f16(unit + Format::kScale), load_f16(unit + Format::kUnit + Format::kScale)};
#pragma GCC unroll 8
    for (size_t t = 0; t < T; ++t) {
      const __m512 da = _mm512_set1_ps(x.d[t]);
#pragma GCC unroll 8
      for (size_t i = 0; i < 2; ++i)
        acc[i][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(c[i][t]), _mm512_mul_ps(d[i], da), acc[i][t]);
    }
    if constexpr (Format::kMin != 0) {
      const __m512 m[2] = {load_f16(unit + Format::kMin), load_f16(unit + Format::kUnit + Format::kMin)};
#pragma GCC unroll 8
      for (size_t t = 0; t < T; ++t) {
        const __m512 s = _mm512_set1_ps(x.d[t] * static_cast<float>(x.sum[t]));
#pragma GCC unroll 8
        for (size_t i = 0; i < 2; ++i) acc[i][t] = _mm512_fmadd_ps(m[i], s, acc[i][t]);
      }
    }
  }
  store_tile<T>(a, acc);
}

}  // namespace TALLY_KERNELS_512
