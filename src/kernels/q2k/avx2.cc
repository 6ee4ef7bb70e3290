// Q2_K on AVX2: the tile of group16_avx2.h. The side of a group is its minimum.

#include "kernels/q2k/group16_avx2.h"
#include "kernels/q2k/q2k.h"

namespace tally::kernels {
namespace {

struct Codes {
  using Unit = Q2KUnit;

  static inline void load(const uint8_t* sub, size_t half, __m256i* codes) {
    const __m256i low = _mm256_set1_epi8(3);
    for (size_t g = 0; g < 2; ++g) {
      const __m256i v = load_32(sub + 64 * g + 32 * half);
      codes[4 * g] = _mm256_and_si256(v, low);
      codes[4 * g + 1] = _mm256_and_si256(_mm256_srli_epi16(v, 2), low);
      codes[4 * g + 2] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
      codes[4 * g + 3] = _mm256_and_si256(_mm256_srli_epi16(v, 6), low);
    }
  }

  static inline __m256i scale(__m128i bytes) {
    return _mm256_cvtepu8_epi16(_mm_and_si128(bytes, _mm_set1_epi8(15)));
  }
  static inline __m256i side(__m128i bytes) { return scale(_mm_srli_epi16(bytes, 4)); }

  struct Factors {
    __m256 d, dmin;
  };
  static inline Factors factors(const uint8_t* unit, size_t half) {
    return {load_half(unit + Unit::kD + 16 * half), load_half(unit + Unit::kMinD + 16 * half)};
  }
  static inline __m256 add(const Factors& f, const BlockSums& sums, __m256 acc) {
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums.codes), _mm256_mul_ps(f.d, sums.da), acc);
    return _mm256_fnmadd_ps(_mm256_cvtepi32_ps(sums.side), _mm256_mul_ps(f.dmin, sums.da), acc);
  }
};

}  // namespace

void q2k_avx2(const LinearArgs& args) { run_panel_tiles(args, Q2KUnit::kBytes, group16_tile<Codes>); }

}  // namespace tally::kernels
