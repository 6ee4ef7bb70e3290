// Q3_K on AVX2: the tile of q2k/group16_avx2.h. Codes are unsigned: the side of a group is its scale, and 4
// times that sum comes off.

#include "kernels/q2k/group16_avx2.h"
#include "kernels/q3k/q3k.h"

namespace tally::kernels {
namespace {

struct Codes {
  using Unit = Q3KUnit;

  static inline void load(const uint8_t* sub, size_t half, __m256i* codes) {
    const __m256i low = _mm256_set1_epi8(3), bit2 = _mm256_set1_epi8(4);
    const __m256i high = load_32(sub + Unit::kHigh + 32 * half);
    // Bit j of `high`, at bit 2.
    const __m256i raised[8] = {
        _mm256_slli_epi16(high, 2), _mm256_slli_epi16(high, 1), high,
        _mm256_srli_epi16(high, 1), _mm256_srli_epi16(high, 2), _mm256_srli_epi16(high, 3),
        _mm256_srli_epi16(high, 4), _mm256_srli_epi16(high, 5)};
    for (size_t g = 0; g < 2; ++g) {
      const __m256i v = load_32(sub + 64 * g + 32 * half);
      const __m256i lowered[4] = {v, _mm256_srli_epi16(v, 2), _mm256_srli_epi16(v, 4),
                                  _mm256_srli_epi16(v, 6)};
      for (size_t p = 0; p < 4; ++p)
        codes[4 * g + p] =
            _mm256_or_si256(_mm256_and_si256(lowered[p], low), _mm256_and_si256(raised[4 * g + p], bit2));
    }
  }

  static inline __m256i scale(__m128i bytes) { return _mm256_cvtepi8_epi16(bytes); }
  static inline __m256i side(__m128i bytes) { return scale(bytes); }

  using Factors = __m256;
  static inline Factors factors(const uint8_t* unit, size_t half) {
    return load_half(unit + Unit::kD + 16 * half);
  }
  static inline __m256 add(Factors d, const BlockSums& sums, __m256 acc) {
    const __m256i exact = _mm256_sub_epi32(sums.codes, _mm256_slli_epi32(sums.side, 2));
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), _mm256_mul_ps(d, sums.da), acc);
  }
};

}  // namespace

void q3k_avx2(const LinearArgs& args) { run_panel_tiles(args, Q3KUnit::kBytes, group16_tile<Codes>); }

}  // namespace tally::kernels
