// BF16 on AVX2: a lane holds the row's pair (k, k + 1); a shift and a mask widen its halves exactly, then as
// F32, k before k + 1. The loop is float_avx2.h.

#include "kernels/bf16/bf16.h"
#include "kernels/float_avx2.h"

namespace tally::kernels {
namespace {

struct BF16 {
  static constexpr size_t kTokens = 2, kStep = 2, kBytes = kGroupRows * 4;

  template <size_t S>
  static inline TALLY_INLINE __m256 load(const uint8_t* w, size_t i) {
    const __m256i pairs = load256(w + 32 * i);
    if constexpr (S == 0) return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
    return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int32_t>(0xFFFF0000u))));
  }
};

}  // namespace

void bf16_avx2(const LinearArgs& args) { float_linear_avx2<BF16>(args); }

}  // namespace tally::kernels
