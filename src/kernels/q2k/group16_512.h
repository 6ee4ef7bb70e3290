#pragma once
// The tile of Q2_K and Q3_K on AVX-512 VNNI: 32 rows x up to 16 tokens, built like q4k/scale_min_512.h.
//
// A sub-block of 32 k has two scales, so two vpdpbusd chains of four and two vpmulld a unit. What each 16-k
// group takes off (group16_avx2.h) comes once a block from the panel's sums, eight vpdpwssd on pairs of
// groups.

#include "kernels/q4k/lanes_512.h"

namespace TALLY_KERNELS_512 {

// The scale bytes of 16-k group g, a byte a row.
template <class Unit>
static inline __m128i scale_bytes(const uint8_t* unit, size_t g) {
  return load_16(unit + Unit::kScale + 16 * g);
}

// The exact sums of one block for 16 rows and one token, and the token's scale.
struct BlockSums {
  __m512i codes, side;
  __m512 da;
};

// The float chain of one block for one unit.
template <class Codes>
static inline void add_block(const uint8_t* unit, const Int256Block& x, size_t tokens, const __m512i* isum,
                             __m512* acc) {
  using Unit = typename Codes::Unit;
  const typename Codes::Factors factors = Codes::factors(unit);
  const __m512i low = _mm512_set1_epi32(0xFFFF);
  __m512i side[8];  // 16-bit pairs: groups 2 * sub and 2 * sub + 1
  for (size_t sub = 0; sub < 8; ++sub) {
    const __m512i first = _mm512_and_si512(Codes::side(scale_bytes<Unit>(unit, 2 * sub)), low);
    const __m512i second = _mm512_slli_epi32(Codes::side(scale_bytes<Unit>(unit, 2 * sub + 1)), 16);
    side[sub] = _mm512_or_si512(first, second);
  }
  for (size_t t = 0; t < tokens; ++t) {
    const int16_t* sums = x.sum16 + 16 * t;
    __m512i side_sum = _mm512_setzero_si512();
    for (size_t sub = 0; sub < 8; ++sub)
      side_sum = _mm512_dpwssd_epi32(side_sum, side[sub], broadcast_4(sums + 2 * sub));
    acc[t] = Codes::add(factors, {isum[t], side_sum, _mm512_set1_ps(x.d[t])}, acc[t]);
  }
}

// Adds one sub-block of both units to isum[unit][token].
template <class Codes>
static inline void add_sub_block(const uint8_t* block, size_t sub, const Int256Block& x, size_t tokens,
                                 __m512i (*isum)[kPanelTile]) {
  using Unit = typename Codes::Unit;
  __m512i codes[2][8], scale[2][2];
  for (size_t u = 0; u < 2; ++u) {
    const uint8_t* unit = block + u * Unit::kBytes;
    Codes::load(unit + Unit::kSubBlock * sub, codes[u]);
    for (size_t i = 0; i < 2; ++i) scale[u][i] = Codes::scale(scale_bytes<Unit>(unit, 2 * sub + i));
  }
  for (size_t t = 0; t < tokens; ++t) {
    const int8_t* q = x.q + 256 * t + 32 * sub;
    for (size_t i = 0; i < 2; ++i) {
      __m512i dot0 = _mm512_setzero_si512(), dot1 = dot0;
      for (size_t g = 0; g < 4; ++g) {
        const __m512i four = broadcast_4(q + 16 * i + 4 * g);
        dot0 = _mm512_dpbusd_epi32(dot0, codes[0][4 * i + g], four);
        dot1 = _mm512_dpbusd_epi32(dot1, codes[1][4 * i + g], four);
      }
      isum[0][t] = _mm512_add_epi32(isum[0][t], _mm512_mullo_epi32(dot0, scale[0][i]));
      isum[1][t] = _mm512_add_epi32(isum[1][t], _mm512_mullo_epi32(dot1, scale[1][i]));
    }
  }
}

// Codes: Unit; load(sub-block, codes[8]) for the 16 rows of a unit; scale(bytes) and side(bytes): 32-bit
// factors of sum(code * q) and of the panel's sums; factors(unit): the f16 factors as f32; add(factors,
// BlockSums, acc): the float chain.
template <class Codes>
static void group16_tile(const TileArgs& args) {
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
      add_sub_block<Codes>(block, sub, x, tokens, isum);
    }
    for (size_t u = 0; u < 2; ++u) add_block<Codes>(block + u * Unit::kBytes, x, tokens, isum[u], acc[u]);
  }
  for (size_t u = 0; u < 2; ++u) store_unit(args, u, acc[u]);
}

}  // namespace TALLY_KERNELS_512
