// Q5_0 on AVX2, from the Q8_0 unit: a byte less 112 is the code q in 0..31, small enough for vpmaddubsw and
// for 16-bit sums over half a block; 16 times the sum of the activations comes off at the end. The loop is
// block32_avx2.h.

#include "kernels/block32_avx2.h"
#include "kernels/q5_0/q5_0.h"

namespace tally::kernels {
namespace {

struct Q5_0 {
  static constexpr size_t kUnit = kQ8_0Unit, kScale = kQ8_0Scale, kMin = 0;

  template <class Use>
  static inline TALLY_INLINE void sums(const uint8_t* rows, const Int32Block& x, size_t tokens, Use use) {
    const __m256i offset = _mm256_set1_epi8(112);
    Codes8 codes;
    for (size_t g = 0; g < 8; ++g) codes.g[g] = _mm256_sub_epi8(load256(rows + 64 * g), offset);
    for (size_t t = 0; t < tokens; ++t)
      use(t, _mm256_sub_epi32(dot<4>(codes, x.q + 32 * t), _mm256_set1_epi32(16 * x.sum[t])));
  }
};

}  // namespace

void q5_0_avx2(const LinearArgs& args) { linear_avx2<Q5_0>(args); }

}  // namespace tally::kernels
