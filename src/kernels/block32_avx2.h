#pragma once
// The AVX2 loop of the formats with blocks of 32: a tile is 32 rows x up to 16 tokens, one lane a row.
//
// Eight rows of a block are 8 registers of codes, unpacked once and multiplied with every token: a broadcast
// of four activations, a vpmaddubsw and a 16-bit add each. The registers hold the codes, so nothing else must
// stay: the f32 accumulators live in L1 and are touched once a block. A longer tile would only cost L1.
// Static functions, see panel.h.

#include "kernels/linear_loop.h"

#include <immintrin.h>

namespace tally::kernels {

#define TALLY_INLINE __attribute__((always_inline))

// Weights are asked for this far ahead: enough for the latency of DRAM, near enough to be in L1 still when
// their turn comes.
inline constexpr size_t kPrefetchAhead = 4096;
inline constexpr size_t kSlices = 4;  // of 8 rows

static inline TALLY_INLINE __m256i load256(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}

// Eight f16 as f32.
static inline TALLY_INLINE __m256 load_f16(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

// Four int8 in every lane.
static inline TALLY_INLINE __m256i broadcast4(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  return _mm256_set1_epi32(four);
}

// Eight rows of a block: codes[g] holds k = 4 g .. 4 g + 3 of every row, unsigned.
struct Codes8 {
  __m256i g[8];
};

// The nibbles that are the codes of a 4-bit format, from the first 256 bytes of a unit.
static inline TALLY_INLINE Codes8 load_nibbles(const uint8_t* rows) {
  const __m256i mask = _mm256_set1_epi8(15);
  Codes8 codes;
  for (size_t j = 0; j < 4; ++j) {
    const __m256i pair = load256(rows + 64 * j);
    codes.g[j] = _mm256_and_si256(pair, mask);
    codes.g[4 + j] = _mm256_and_si256(_mm256_srli_epi16(pair, 4), mask);
  }
  return codes;
}

// The integer sum of codes times q. kChain products pairs are added in 16 bits: 8 if codes are at most 15 (16
// * 15 * 127 is below 2^15), 4 if at most 31.
template <size_t kChain>
static inline TALLY_INLINE __m256i dot(const Codes8& codes, const int8_t* q) {
  const __m256i ones = _mm256_set1_epi16(1);
  __m256i total = _mm256_setzero_si256();
#pragma GCC unroll 2
  for (size_t begin = 0; begin < 8; begin += kChain) {
    __m256i sum = _mm256_maddubs_epi16(codes.g[begin], broadcast4(q + 4 * begin));
#pragma GCC unroll 8
    for (size_t g = begin + 1; g < begin + kChain; ++g)
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes.g[g], broadcast4(q + 4 * g)));
    const __m256i wide = _mm256_madd_epi16(sum, ones);
    total = begin == 0 ? wide : _mm256_add_epi32(total, wide);
  }
  return total;
}

// The accumulators of 8 rows, a register a token.
using Accumulators = __m256[kPanelTile];

// Writes slice `s` of every token; rows that do not exist are left alone.
static inline TALLY_INLINE void store_slice(const TileArgs& a, size_t s, const __m256* acc, size_t tokens) {
  if (a.rows <= 8 * s) return;
  const size_t rows = a.rows - 8 * s;
  const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(rows < 8 ? rows : 8)),
                                          _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  for (size_t t = 0; t < tokens; ++t) {
    float* out = a.out + t * a.out_stride + 8 * s;
    if (rows >= 8)
      _mm256_storeu_ps(out, acc[t]);
    else
      _mm256_maskstore_ps(out, mask, acc[t]);
  }
}

// The scales of rows 8 * half .. of a unit: f16 at kScale, unless the format says otherwise.
template <class Format>
static inline TALLY_INLINE __m256 load_scales(const uint8_t* unit, size_t half) {
  if constexpr (requires { Format::scales(unit, half); })
    return Format::scales(unit, half);
  else
    return load_f16(unit + Format::kScale + 16 * half);
}

// Format: kUnit, kScale or scales(unit, half), kMin (0: none) in bytes; sums(rows, x, tokens, use): calls
// use(t, integer sum of token t's products with the 8 rows whose first code byte is at `rows`).
template <class Format>
static void tile_avx2(const TileArgs& a) {
  const size_t tokens = a.tile.tokens;
  Accumulators acc[kSlices];
  for (Accumulators& slice : acc)
    for (size_t t = 0; t < tokens; ++t) slice[t] = _mm256_setzero_ps();

  const uint8_t* block = reinterpret_cast<const uint8_t*>(a.group);
  for (size_t b = 0; b < a.k / 32; ++b, block += 2 * Format::kUnit) {
    const Int32Block x = int32_block(a.tile.bytes, tokens, b);
    float weight_of_min[kPanelTile];
    if constexpr (Format::kMin != 0)
      for (size_t t = 0; t < tokens; ++t) weight_of_min[t] = x.d[t] * static_cast<float>(x.sum[t]);
    for (size_t line = 0; line < 2 * Format::kUnit; line += 64)
      _mm_prefetch(block + line + kPrefetchAhead, _MM_HINT_T0);
    for (size_t s = 0; s < kSlices; ++s) {
      const uint8_t* unit = block + s / 2 * Format::kUnit;
      const size_t half = s % 2;
      const __m256 d = load_scales<Format>(unit, half);
      __m256 m;
      if constexpr (Format::kMin != 0) m = load_f16(unit + Format::kMin + 16 * half);
      Format::sums(unit + 32 * half, x, tokens, [&](size_t t, __m256i c) TALLY_INLINE {
        __m256 sum = acc[s][t];
        sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(c), _mm256_mul_ps(d, _mm256_set1_ps(x.d[t])), sum);
        if constexpr (Format::kMin != 0) sum = _mm256_fmadd_ps(m, _mm256_set1_ps(weight_of_min[t]), sum);
        acc[s][t] = sum;
      });
    }
  }
  for (size_t s = 0; s < kSlices; ++s) store_slice(a, s, acc[s], tokens);
}

template <class Format>
static inline TALLY_INLINE void linear_avx2(const LinearArgs& a) {
  run_whole_tiles(a, a.k / 32 * 2 * Format::kUnit, a.k / 32 * kInt32BlockBytes, tile_avx2<Format>);
}

}  // namespace tally::kernels
