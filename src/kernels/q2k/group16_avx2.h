#pragma once
// The tile of Q2_K and Q3_K on AVX2: 32 rows x up to 16 tokens, as four slices of 8 rows.
//
// As in q4k/scale_min_avx2.h a sub-block's codes of a slice are unpacked once into 8 registers and meet the
// tokens one after the other. A scale serves 16 k: four product pairs of codes up to 7 (4 * 2 * 7 * 127 =
// 7112) are added in 16 bits, then one vpmaddwd multiplies both halves of a row by its scale. What each 16-k
// group takes off (the minimum, or the offset of unsigned codes) comes once a block from the panel's sums,
// eight vpmaddwd on pairs of groups.

#include "kernels/q4k/lanes_avx2.h"

namespace tally::kernels {

// Row sums of codes * q over 16 k, times the row's scale.
static inline __m256i group_dot(const __m256i* codes, const int8_t* q, __m256i scale) {
  __m256i sum = _mm256_maddubs_epi16(codes[0], broadcast_4(q));
  for (size_t g = 1; g < 4; ++g)
    sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(codes[g], broadcast_4(q + 4 * g)));
  return _mm256_madd_epi16(sum, scale);
}

// The scale bytes of the 16-k groups 2 * sub and 2 * sub + 1, side by side for each of 8 rows.
template <class Unit>
static inline __m128i scale_bytes(const uint8_t* unit, size_t sub, size_t half) {
  const uint8_t* p = unit + Unit::kScale + 32 * sub + 8 * half;
  return _mm_unpacklo_epi8(load_8(p), load_8(p + 16));
}

// The exact sums of one block for 8 rows and one token, and the token's scale.
struct BlockSums {
  __m256i codes, side;
  __m256 da;
};

// The float chain of one block for one slice.
template <class Codes>
static inline void add_block(const uint8_t* unit, size_t half, const Int256Block& x, size_t tokens,
                             const __m256i* isum, __m256* acc) {
  using Unit = typename Codes::Unit;
  const typename Codes::Factors factors = Codes::factors(unit, half);
  __m256i side[8];
  for (size_t sub = 0; sub < 8; ++sub) side[sub] = Codes::side(scale_bytes<Unit>(unit, sub, half));
  for (size_t t = 0; t < tokens; ++t) {
    const int16_t* sums = x.sum16 + 16 * t;
    __m256i side_sum = _mm256_madd_epi16(side[0], broadcast_4(sums));
    for (size_t sub = 1; sub < 8; ++sub)
      side_sum = _mm256_add_epi32(side_sum, _mm256_madd_epi16(side[sub], broadcast_4(sums + 2 * sub)));
    acc[t] = Codes::add(factors, {isum[t], side_sum, _mm256_set1_ps(x.d[t])}, acc[t]);
  }
}

// Codes: Unit; load(sub-block, half, codes[8]) for rows 8 * half ..; scale(bytes) and side(bytes): 16-bit
// factors of sum(code * q) and of the panel's sums; factors(unit, half): the f16 factors as f32; add(factors,
// BlockSums, acc): the float chain.
template <class Codes>
static void group16_tile(const TileArgs& args) {
  using Unit = typename Codes::Unit;
  const __m256i lane =
      _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0C0C0C0C, 0, 0x04040404, 0x08080808, 0x0C0C0C0C);
  const __m256i take_first = _mm256_add_epi8(_mm256_set1_epi32(0x01000100), lane),
                take_second = _mm256_add_epi8(_mm256_set1_epi32(0x03020302), lane);
  const size_t tokens = args.tile.tokens;
  __m256 acc[kSlices][kPanelTile];
  for (auto& slice : acc)
    for (size_t t = 0; t < tokens; ++t) slice[t] = _mm256_setzero_ps();
  const auto* block = reinterpret_cast<const uint8_t*>(args.group);
  for (size_t b = 0; b < args.k / 256; ++b, block += 2 * Unit::kBytes) {
    const Int256Block x = int256_block(args.tile.bytes, tokens, b);
    for (size_t s = 0; s < kSlices; ++s) {
      const uint8_t* unit = block + s / 2 * Unit::kBytes;
      const size_t half = s % 2;
      __m256i isum[kPanelTile];
      for (size_t t = 0; t < tokens; ++t) isum[t] = _mm256_setzero_si256();
      for (size_t sub = 0; sub < 8; ++sub) {
        prefetch_step<Unit::kBytes>(block, 8 * s + sub);
        __m256i codes[8];
        Codes::load(unit + Unit::kSubBlock * sub, half, codes);
        const __m256i scales = Codes::scale(scale_bytes<Unit>(unit, sub, half));
        const __m256i scale0 = _mm256_shuffle_epi8(scales, take_first),
                      scale1 = _mm256_shuffle_epi8(scales, take_second);
        for (size_t t = 0; t < tokens; ++t) {
          const int8_t* q = x.q + 256 * t + 32 * sub;
          const __m256i dot =
              _mm256_add_epi32(group_dot(codes, q, scale0), group_dot(codes + 4, q + 16, scale1));
          isum[t] = _mm256_add_epi32(isum[t], dot);
        }
      }
      add_block<Codes>(unit, half, x, tokens, isum, acc[s]);
    }
  }
  for (size_t s = 0; s < kSlices; ++s) store_slice(args, s, acc[s]);
}

}  // namespace tally::kernels
