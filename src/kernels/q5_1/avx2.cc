// Q5_1 on AVX2: as Q4_1 with the fifth bit put on each nibble. A block's products with 5-bit codes would pass
// 2^15, so the 16-bit sums are emptied after half of it. The loop is block32_avx2.h.

#include "kernels/block32_avx2.h"
#include "kernels/q5_1/q5_1.h"

namespace tally::kernels {
namespace {

struct Q5_1 {
  static constexpr size_t kUnit = kQ5_1Unit, kScale = kQ5_1Scale, kMin = kQ5_1Min;

  template <class Use>
  static inline TALLY_INLINE void sums(const uint8_t* rows, const Int32Block& x, size_t tokens, Use use) {
    const __m256i h = load256(rows + kQ5_1High), bit4 = _mm256_set1_epi8(16);
    Codes8 codes = load_nibbles(rows);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      codes.g[j] = _mm256_or_si256(codes.g[j], _mm256_and_si256(_mm256_slli_epi16(h, 4 - j), bit4));
      codes.g[4 + j] = _mm256_or_si256(codes.g[4 + j], _mm256_and_si256(_mm256_srli_epi16(h, j), bit4));
    }
    for (size_t t = 0; t < tokens; ++t) use(t, dot<4>(codes, x.q + 32 * t));
  }
};

}  // namespace

void q5_1_avx2(const LinearArgs& args) { linear_avx2<Q5_1>(args); }

}  // namespace tally::kernels
