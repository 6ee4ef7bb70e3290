// Q4_0 on AVX2: the products of the unsigned nibbles as in q4_1/avx2.cc, less 8 times the sum of the
// activations, which the panel knows. The loop is block32_avx2.h.

#include "kernels/block32_avx2.h"
#include "kernels/q4_0/q4_0.h"

namespace tally::kernels {
namespace {

struct Q4_0 {
  static constexpr size_t kUnit = kQ4_0Unit, kScale = kQ4_0Scale, kMin = 0;

  template <class Use>
  static inline TALLY_INLINE void sums(const uint8_t* rows, const Int32Block& x, size_t tokens, Use use) {
    const Codes8 codes = load_nibbles(rows);
    for (size_t t = 0; t < tokens; ++t)
      use(t, _mm256_sub_epi32(dot<8>(codes, x.q + 32 * t), _mm256_set1_epi32(8 * x.sum[t])));
  }
};

}  // namespace

void q4_0_avx2(const LinearArgs& args) { linear_avx2<Q4_0>(args); }

}  // namespace tally::kernels
