// Q8_0 on AVX2. vpmaddubsw would saturate: two products of a u8 code and an int8 activation reach 64,770.
// (Moving the activation's sign to the weight is wrong for -128, which a file may hold.) So the byte q + 128
// = 16 h + l is taken apart into its nibbles, which are codes like those of Q4: 16 times the sum of h, plus
// the sum of l, less 128 times the sum of the activations, exact for every code. The first plane's sums wait
// in L1. The loop is block32_avx2.h.

#include "kernels/block32_avx2.h"
#include "kernels/q8_0/q8_0.h"

namespace tally::kernels {
namespace {

struct Q8_0 {
  static constexpr size_t kUnit = kQ8_0Unit, kScale = kQ8_0Scale, kMin = 0;

  template <class Use>
  static inline TALLY_INLINE void sums(const uint8_t* rows, const Int32Block& x, size_t tokens, Use use) {
    const __m256i mask = _mm256_set1_epi8(15);
    Codes8 codes;
    for (size_t g = 0; g < 8; ++g)
      codes.g[g] = _mm256_and_si256(_mm256_srli_epi16(load256(rows + 64 * g), 4), mask);
    __m256i high[kPanelTile];
    for (size_t t = 0; t < tokens; ++t) high[t] = dot<8>(codes, x.q + 32 * t);
    for (size_t g = 0; g < 8; ++g) codes.g[g] = _mm256_and_si256(load256(rows + 64 * g), mask);
    for (size_t t = 0; t < tokens; ++t) {
      const __m256i low = _mm256_sub_epi32(dot<8>(codes, x.q + 32 * t), _mm256_set1_epi32(128 * x.sum[t]));
      use(t, _mm256_add_epi32(_mm256_slli_epi32(high[t], 4), low));
    }
  }
};

}  // namespace

void q8_0_avx2(const LinearArgs& args) { linear_avx2<Q8_0>(args); }

}  // namespace tally::kernels
