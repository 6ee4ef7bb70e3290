// IQ4_NL on AVX2: two planes of the values (planes_avx2.h), each looked up from the nibbles and multiplied as
// Q4 codes are: 16 times the sum of the high plane, plus that of the low one, less 128 times the sum of the
// activations. The first plane's sums wait in L1. The loop is block32_avx2.h.

#include "kernels/block32_avx2.h"
#include "kernels/iq4_nl/iq4_nl.h"
#include "kernels/iq4_nl/planes_avx2.h"

namespace tally::kernels {
namespace {

struct Iq4Nl {
  static constexpr size_t kUnit = kIq4NlUnit, kScale = kIq4NlScale, kMin = 0;

  template <class Use>
  static inline TALLY_INLINE void sums(const uint8_t* rows, const Int32Block& x, size_t tokens, Use use) {
    const Iq4Planes planes = iq4_planes();
    const Codes8 nibbles = load_nibbles(rows);
    Codes8 codes;
    for (size_t g = 0; g < 8; ++g) codes.g[g] = _mm256_shuffle_epi8(planes.high, nibbles.g[g]);
    __m256i high[kPanelTile];
    for (size_t t = 0; t < tokens; ++t) high[t] = dot<8>(codes, x.q + 32 * t);
    for (size_t g = 0; g < 8; ++g) codes.g[g] = _mm256_shuffle_epi8(planes.low, nibbles.g[g]);
    for (size_t t = 0; t < tokens; ++t) {
      const __m256i low = _mm256_sub_epi32(dot<8>(codes, x.q + 32 * t), _mm256_set1_epi32(128 * x.sum[t]));
      use(t, _mm256_add_epi32(_mm256_slli_epi32(high[t], 4), low));
    }
  }
};

}  // namespace

void iq4_nl_avx2(const LinearArgs& args) { linear_avx2<Iq4Nl>(args); }

}  // namespace tally::kernels
