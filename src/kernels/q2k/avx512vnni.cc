// Q2_K on AVX-512 VNNI: the tile of group16_512.h. The side of a group is its minimum.

#include "kernels/q2k/group16_512.h"
#include "kernels/q2k/q2k.h"

namespace TALLY_KERNELS_512 {
namespace {

struct Codes {
  using Unit = Q2KUnit;

  static inline void load(const uint8_t* sub, __m512i* codes) {
    const __m512i low = _mm512_set1_epi8(3);
    for (size_t g = 0; g < 2; ++g) {
      const __m512i v = load_64(sub + 64 * g);
      codes[4 * g] = _mm512_and_si512(v, low);
      codes[4 * g + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 2), low);
      codes[4 * g + 2] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
      codes[4 * g + 3] = _mm512_and_si512(_mm512_srli_epi16(v, 6), low);
    }
  }

  static inline __m512i scale(__m128i bytes) {
    return _mm512_cvtepu8_epi32(_mm_and_si128(bytes, _mm_set1_epi8(15)));
  }
  static inline __m512i side(__m128i bytes) { return scale(_mm_srli_epi16(bytes, 4)); }

  struct Factors {
    __m512 d, dmin;
  };
  static inline Factors factors(const uint8_t* unit) {
    return {load_half(unit + Unit::kD), load_half(unit + Unit::kMinD)};
  }
  static inline __m512 add(const Factors& f, const BlockSums& sums, __m512 acc) {
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums.codes), _mm512_mul_ps(f.d, sums.da), acc);
    return _mm512_fnmadd_ps(_mm512_cvtepi32_ps(sums.side), _mm512_mul_ps(f.dmin, sums.da), acc);
  }
};

}  // namespace

void q2k_avx512vnni(const LinearArgs& args) { run_panel_tiles(args, Q2KUnit::kBytes, group16_tile<Codes>); }

}  // namespace TALLY_KERNELS_512
