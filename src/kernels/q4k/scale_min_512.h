#pragma once
// The tile of Q4_K and Q5_K on AVX-512 VNNI: 32 rows x up to 16 tokens.
//
// A sub-block's codes of all 32 rows are unpacked once into 16 registers (two units x eight k-groups of 4)
// and meet the tokens one after the other: one broadcast of 4 activations feeds two vpdpbusd, which is what
// keeps the load ports below the dot ports. vpmulld applies the scale to the 32-bit sum. The integer sums of
// a block live in L1; 16 + 2 + 2 + 1 registers do not spill and any number of tokens runs the same code.

#include "kernels/q4k/lanes_512.h"

namespace TALLY_KERNELS_512 {

// The float chain of one block for one unit: the scaled codes, then the minimums.
template <class Unit>
static inline void add_block(const uint8_t* unit, const Int256Block& x, size_t tokens, const __m512i* isum,
                             __m512* acc) {
  const __m512 d = load_half(unit + Unit::kD), dmin = load_half(unit + Unit::kMinD);
  __m512i min[4];
  for (size_t j = 0; j < 4; ++j) min[j] = load_64(unit + Unit::kMin + 64 * j);
  for (size_t t = 0; t < tokens; ++t) {
    const int16_t* sums = x.sum32 + 8 * t;
    __m512i msum = _mm512_setzero_si512();
    for (size_t j = 0; j < 4; ++j) msum = _mm512_dpwssd_epi32(msum, min[j], broadcast_4(sums + 2 * j));
    const __m512 da = _mm512_set1_ps(x.d[t]);
    const __m512 main = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum[t]), _mm512_mul_ps(d, da), acc[t]);
    acc[t] = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(msum), _mm512_mul_ps(dmin, da), main);
  }
}

// Codes: Unit, and load(sub-block, codes[8]) for the 16 rows of a unit.
template <class Codes>
static void scale_min_tile(const TileArgs& args) {
  using Unit = typename Codes::Unit;
  const size_t tokens = args.tile.tokens;
  __m512 acc[2][kPanelTile];
  for (auto& unit : acc)
    for (size_t t = 0; t < tokens; ++t) unit[t] = _mm512_setzero_ps();
  const auto* block = reinterpret_cast<const uint8_t*>(args.group);
  for (size_t b = 0; b < args.k / 256; ++b, block += 2 * Unit::kBytes) {
    const Int256Block x = int256_block(args.tile.bytes, tokens, b);
    __m512i isum[2][kPanelTile];
    for (auto& unit : isum)
      for (size_t t = 0; t < tokens; ++t) unit[t] = _mm512_setzero_si512();
    for (size_t sub = 0; sub < 8; ++sub) {
      prefetch_step<Unit::kBytes>(block, sub);
      __m512i codes[2][8], scale[2];
      for (size_t u = 0; u < 2; ++u) {
        const uint8_t* unit = block + u * Unit::kBytes;
        Codes::load(unit + Unit::kSubBlock * sub, codes[u]);
        scale[u] = _mm512_cvtepu8_epi32(load_16(unit + Unit::kScale + 16 * sub));
      }
      for (size_t t = 0; t < tokens; ++t) {
        const int8_t* q = x.q + 256 * t + 32 * sub;
        __m512i dot0 = _mm512_setzero_si512(), dot1 = dot0;
        for (size_t g = 0; g < 8; ++g) {
          const __m512i four = broadcast_4(q + 4 * g);
          dot0 = _mm512_dpbusd_epi32(dot0, codes[0][g], four);
          dot1 = _mm512_dpbusd_epi32(dot1, codes[1][g], four);
        }
        isum[0][t] = _mm512_add_epi32(isum[0][t], _mm512_mullo_epi32(dot0, scale[0]));
        isum[1][t] = _mm512_add_epi32(isum[1][t], _mm512_mullo_epi32(dot1, scale[1]));
      }
    }
    for (size_t u = 0; u < 2; ++u) add_block<Unit>(block + u * Unit::kBytes, x, tokens, isum[u], acc[u]);
  }
  for (size_t u = 0; u < 2; ++u) store_unit(args, u, acc[u]);
}

}  // namespace TALLY_KERNELS_512
