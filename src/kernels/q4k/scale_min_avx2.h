#pragma once
// The tile of Q4_K and Q5_K on AVX2: 32 rows x up to 16 tokens, as four slices of 8 rows.
//
// A sub-block's codes of a slice are unpacked once into 8 registers (register g: k = 4 g .. 4 g + 3 of 8
// rows) and meet the tokens one after the other. vpmaddubsw makes sums of two products in 16 bits;
// Codes::kChain of them are added before they can overflow, then one vpmaddwd multiplies both 16-bit halves
// of a row by its scale and adds them: the scale costs nothing. The integer sums of a block live in L1, two
// memory operations against some twenty of arithmetic; 8 + 4 registers do not spill, and any number of tokens
// runs the same code. Several tokens a tile share the unpacking, which is why the tile is as wide as the
// panel's.

#include "kernels/q4k/lanes_avx2.h"

namespace tally::kernels {

// Row sums of codes * q over 32 k, times the row's scale.
template <size_t kChain>
static inline __m256i scaled_dot(const __m256i* codes, const int8_t* q, __m256i scale) {
  __m256i sum = _mm256_setzero_si256();
  for (size_t begin = 0; begin < 8; begin += kChain) {
    __m256i part = _mm256_maddubs_epi16(codes[begin], broadcast_4(q + 4 * begin));
    for (size_t g = begin + 1; g < begin + kChain; ++g)
      part = _mm256_add_epi16(part, _mm256_maddubs_epi16(codes[g], broadcast_4(q + 4 * g)));
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(part, scale));
  }
  return sum;
}

// The float chain of one block for slice `s`: the scaled codes, then the minimums.
template <class Unit>
static inline void add_block(const uint8_t* unit, size_t half, const Int256Block& x, size_t tokens,
                             const __m256i* isum, __m256* acc) {
  const __m256 d = load_half(unit + Unit::kD + 16 * half), dmin = load_half(unit + Unit::kMinD + 16 * half);
  __m256i min[4];
  for (size_t j = 0; j < 4; ++j) min[j] = load_32(unit + Unit::kMin + 64 * j + 32 * half);
  for (size_t t = 0; t < tokens; ++t) {
    const int16_t* sums = x.sum32 + 8 * t;
    __m256i msum = _mm256_madd_epi16(min[0], broadcast_4(sums));
    for (size_t j = 1; j < 4; ++j)
      msum = _mm256_add_epi32(msum, _mm256_madd_epi16(min[j], broadcast_4(sums + 2 * j)));
    const __m256 da = _mm256_set1_ps(x.d[t]);
    const __m256 main = _mm256_fmadd_ps(_mm256_cvtepi32_ps(isum[t]), _mm256_mul_ps(d, da), acc[t]);
    acc[t] = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(msum), _mm256_mul_ps(dmin, da), main);
  }
}

// Codes: Unit, kChain, and load(sub-block, half, codes[8]) for rows 8 * half ..
template <class Codes>
static void scale_min_tile(const TileArgs& args) {
  using Unit = typename Codes::Unit;
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
        const __m128i bytes = load_8(unit + Unit::kScale + 16 * sub + 8 * half);
        const __m256i scale = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(bytes, bytes));
        for (size_t t = 0; t < tokens; ++t)
          isum[t] =
              _mm256_add_epi32(isum[t], scaled_dot<Codes::kChain>(codes, x.q + 256 * t + 32 * sub, scale));
      }
      add_block<Unit>(unit, half, x, tokens, isum, acc[s]);
    }
  }
  for (size_t s = 0; s < kSlices; ++s) store_slice(args, s, acc[s]);
}

}  // namespace tally::kernels
