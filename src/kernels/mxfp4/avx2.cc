// MXFP4 on AVX2: the nibbles are looked up as value + 12, 0..24, small enough for vpmaddubsw and for 16-bit
// sums over half a block (4 * 2 * 24 * 127 = 24,384); 12 times the sum of the activations comes off at the
// end. The loop is block32_avx2.h.

#include "kernels/block32_avx2.h"
#include "kernels/mxfp4/mxfp4.h"
#include "tensor/blocks.h"

namespace tally::kernels {
namespace {

struct Mxfp4 {
  static constexpr size_t kUnit = kMxfp4Unit, kMin = 0;

  // 2^(e - 128): e - 1 is the exponent of a float, but for the subnormals of e = 0 and 1, which are larger
  // than what e - 1 gives for them and smaller than any other.
  static inline TALLY_INLINE __m256 scales(const uint8_t* unit, size_t half) {
    const __m256i e = _mm256_cvtepu8_epi32(
        _mm_loadl_epi64(reinterpret_cast<const __m128i*>(unit + kMxfp4Scale + 8 * half)));
    const __m256i one = _mm256_set1_epi32(1);
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    const __m256i subnormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), _mm256_min_epi32(e, one));
    return _mm256_castsi256_ps(_mm256_max_epi32(normal, subnormal));
  }

  template <class Use>
  static inline TALLY_INLINE void sums(const uint8_t* rows, const Int32Block& x, size_t tokens, Use use) {
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tensor::kMxfp4Values));
    const __m256i table = _mm256_broadcastsi128_si256(_mm_add_epi8(values, _mm_set1_epi8(12)));
    Codes8 codes = load_nibbles(rows);
    for (size_t g = 0; g < 8; ++g) codes.g[g] = _mm256_shuffle_epi8(table, codes.g[g]);
    for (size_t t = 0; t < tokens; ++t)
      use(t, _mm256_sub_epi32(dot<4>(codes, x.q + 32 * t), _mm256_set1_epi32(12 * x.sum[t])));
  }
};

}  // namespace

void mxfp4_avx2(const LinearArgs& args) { linear_avx2<Mxfp4>(args); }

}  // namespace tally::kernels
