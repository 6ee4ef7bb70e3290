// IQ4_XS on AVX-512 VNNI: 32 rows x up to 16 tokens, built like q4k/scale_min_512.h. The nibbles are looked
// up as value + 128, 1..241, the unsigned operand of vpdpbusd; 128 times the sum of the activations comes off
// in the initial accumulator of each sub-block, before the scale.

#include "kernels/iq4_xs/iq4_xs.h"
#include "kernels/q4k/lanes_512.h"
#include "tensor/blocks.h"

namespace TALLY_KERNELS_512 {
namespace {

using Unit = Iq4XsUnit;

inline __m512i load_table() {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tensor::kIq4Values));
  return _mm512_broadcast_i32x4(_mm_xor_si128(values, _mm_set1_epi8(-128)));
}

inline void load_values(const uint8_t* sub, __m512i table, __m512i* values) {
  const __m512i low = _mm512_set1_epi8(15);
  for (size_t j = 0; j < 4; ++j) {
    const __m512i v = load_64(sub + 64 * j);
    values[j] = _mm512_shuffle_epi8(table, _mm512_and_si512(v, low));
    values[4 + j] = _mm512_shuffle_epi8(table, _mm512_and_si512(_mm512_srli_epi16(v, 4), low));
  }
}

// Adds one sub-block of both units to isum[unit][token].
inline void add_sub_block(const uint8_t* block, size_t sub, __m512i table, const Int256Block& x,
                          size_t tokens, __m512i (*isum)[kPanelTile]) {
  __m512i values[2][8], scale[2];
  for (size_t u = 0; u < 2; ++u) {
    const uint8_t* unit = block + u * Unit::kBytes;
    load_values(unit + Unit::kSubBlock * sub, table, values[u]);
    scale[u] = _mm512_cvtepi8_epi32(load_16(unit + Unit::kScale + 16 * sub));
  }
  for (size_t t = 0; t < tokens; ++t) {
    const int8_t* q = x.q + 256 * t + 32 * sub;
    __m512i dot0 = _mm512_set1_epi32(-128 * x.sum32[8 * t + sub]), dot1 = dot0;
    for (size_t g = 0; g < 8; ++g) {
      const __m512i four = broadcast_4(q + 4 * g);
      dot0 = _mm512_dpbusd_epi32(dot0, values[0][g], four);
      dot1 = _mm512_dpbusd_epi32(dot1, values[1][g], four);
    }
    isum[0][t] = _mm512_add_epi32(isum[0][t], _mm512_mullo_epi32(dot0, scale[0]));
    isum[1][t] = _mm512_add_epi32(isum[1][t], _mm512_mullo_epi32(dot1, scale[1]));
  }
}

void tile(const TileArgs& args) {
  const __m512i table = load_table();
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
      add_sub_block(block, sub, table, x, tokens, isum);
    }
    for (size_t u = 0; u < 2; ++u) {
      const __m512 d = load_half(block + u * Unit::kBytes + Unit::kD);
      for (size_t t = 0; t < tokens; ++t)
        acc[u][t] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum[u][t]), _mm512_mul_ps(d, _mm512_set1_ps(x.d[t])),
                                    acc[u][t]);
    }
  }
  for (size_t u = 0; u < 2; ++u) store_unit(args, u, acc[u]);
}

}  // namespace

void iq4_xs_avx512vnni(const LinearArgs& args) { run_panel_tiles(args, Unit::kBytes, tile); }

}  // namespace TALLY_KERNELS_512
