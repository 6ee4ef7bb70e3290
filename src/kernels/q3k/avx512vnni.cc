// Q3_K on AVX-512 VNNI: the tile of q2k/group16_512.h. Codes are unsigned: the side of a group is its scale,
// and 4 times that sum comes off.

#include "kernels/q2k/group16_512.h"
#include "kernels/q3k/q3k.h"

namespace TALLY_KERNELS_512 {
namespace {

struct Codes {
  using Unit = Q3KUnit;

  static inline void load(const uint8_t* sub, __m512i* codes) {
    const __m512i low = _mm512_set1_epi8(3), bit2 = _mm512_set1_epi8(4);
    const __m512i high = load_64(sub + Unit::kHigh);
    // Bit j of `high`, at bit 2.
    const __m512i raised[8] = {
        _mm512_slli_epi16(high, 2), _mm512_slli_epi16(high, 1), high,
        _mm512_srli_epi16(high, 1), _mm512_srli_epi16(high, 2), _mm512_srli_epi16(high, 3),
        _mm512_srli_epi16(high, 4), _mm512_srli_epi16(high, 5)};
    for (size_t g = 0; g < 2; ++g) {
      const __m512i v = load_64(sub + 64 * g);
      const __m512i lowered[4] = {v, _mm512_srli_epi16(v, 2), _mm512_srli_epi16(v, 4),
                                  _mm512_srli_epi16(v, 6)};
      for (size_t p = 0; p < 4; ++p)
        codes[4 * g + p] =
            _mm512_or_si512(_mm512_and_si512(lowered[p], low), _mm512_and_si512(raised[4 * g + p], bit2));
    }
  }

  static inline __m512i scale(__m128i bytes) { return _mm512_cvtepi8_epi32(bytes); }
  static inline __m512i side(__m128i bytes) { return scale(bytes); }

  using Factors = __m512;
  static inline Factors factors(const uint8_t* unit) { return load_half(unit + Unit::kD); }
  static inline __m512 add(Factors d, const BlockSums& sums, __m512 acc) {
    const __m512i exact = _mm512_sub_epi32(sums.codes, _mm512_slli_epi32(sums.side, 2));
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), _mm512_mul_ps(d, sums.da), acc);
  }
};

}  // namespace

void q3k_avx512vnni(const LinearArgs& args) { run_panel_tiles(args, Q3KUnit::kBytes, group16_tile<Codes>); }

}  // namespace TALLY_KERNELS_512
