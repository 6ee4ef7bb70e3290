// Q6_K on AVX-512 VNNI: 32 rows x up to 16 tokens, built like q4k/scale_min_512.h.
//
// A sub-block of 32 k has two scales, so two vpdpbusd chains of four and two vpmulld a unit. Codes are
// unsigned: 32 * sum_g scale_g * sum16_g is taken off once a block, from the panel's sums, eight vpdpwssd on
// pairs of groups, instead of one more addition a sub-block.

#include "kernels/q4k/lanes_512.h"
#include "kernels/q6k/q6k.h"

namespace TALLY_KERNELS_512 {
namespace {

using Unit = Q6KUnit;

inline void load_codes(const uint8_t* sub, __m512i* codes) {
  const __m512i low = _mm512_set1_epi8(15), bits = _mm512_set1_epi8(0x30);
  for (size_t pair = 0; pair < 2; ++pair) {
    const __m512i high = load_64(sub + Unit::kHigh + 64 * pair);
    const __m512i even = load_64(sub + 128 * pair), odd = load_64(sub + 128 * pair + 64);
    __m512i* x = codes + 2 * pair;
    x[0] = _mm512_or_si512(_mm512_and_si512(even, low), _mm512_and_si512(_mm512_slli_epi16(high, 4), bits));
    x[1] = _mm512_or_si512(_mm512_and_si512(odd, low), _mm512_and_si512(high, bits));
    x[4] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(even, 4), low),
                           _mm512_and_si512(_mm512_slli_epi16(high, 2), bits));
    x[5] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(odd, 4), low),
                           _mm512_and_si512(_mm512_srli_epi16(high, 2), bits));
  }
}

// The scales of 16-k group g.
inline __m512i load_scale(const uint8_t* unit, size_t g) {
  return _mm512_cvtepi8_epi32(load_16(unit + Unit::kScale + 16 * g));
}

// Corrects isum for the codes' offset and adds the block to the float chain.
inline void add_block(const uint8_t* unit, const Int256Block& x, size_t tokens, const __m512i* isum,
                      __m512* acc) {
  const __m512 d = load_half(unit + Unit::kD);
  const __m512i low = _mm512_set1_epi32(0xFFFF);
  __m512i scale[8];  // 16-bit pairs: groups 2 * sub and 2 * sub + 1
  for (size_t sub = 0; sub < 8; ++sub) {
    const __m512i first = _mm512_and_si512(load_scale(unit, 2 * sub), low);
    scale[sub] = _mm512_or_si512(first, _mm512_slli_epi32(load_scale(unit, 2 * sub + 1), 16));
  }
  for (size_t t = 0; t < tokens; ++t) {
    const int16_t* sums = x.sum16 + 16 * t;
    __m512i offset = _mm512_setzero_si512();
    for (size_t sub = 0; sub < 8; ++sub)
      offset = _mm512_dpwssd_epi32(offset, scale[sub], broadcast_4(sums + 2 * sub));
    const __m512i exact = _mm512_sub_epi32(isum[t], _mm512_slli_epi32(offset, 5));
    acc[t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), _mm512_mul_ps(d, _mm512_set1_ps(x.d[t])), acc[t]);
  }
}

// Adds one sub-block of both units to isum[unit][token].
inline void add_sub_block(const uint8_t* block, size_t sub, const Int256Block& x, size_t tokens,
                          __m512i (*isum)[kPanelTile]) {
  __m512i codes[2][8], scale[2][2];
  for (size_t u = 0; u < 2; ++u) {
    const uint8_t* unit = block + u * Unit::kBytes;
    load_codes(unit + Unit::kSubBlock * sub, codes[u]);
    for (size_t i = 0; i < 2; ++i) scale[u][i] = load_scale(unit, 2 * sub + i);
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

void tile(const TileArgs& args) {
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
      add_sub_block(block, sub, x, tokens, isum);
    }
    for (size_t u = 0; u < 2; ++u) add_block(block + u * Unit::kBytes, x, tokens, isum[u], acc[u]);
  }
  for (size_t u = 0; u < 2; ++u) store_unit(args, u, acc[u]);
}

}  // namespace

void q6k_avx512vnni(const LinearArgs& args) { run_panel_tiles(args, Unit::kBytes, tile); }

}  // namespace TALLY_KERNELS_512
