#pragma once
// vpdpbusd on 256-bit registers, native (AVX-VNNI) or emulated.

#include "kernels/tier.h"

#include <immintrin.h>

namespace TALLY_KERNELS_TIER {

// Adds to each 32-bit lane of `sum` the products of its four unsigned bytes of w and signed bytes of x.
static inline __attribute__((always_inline)) __m256i dpbusd_256(__m256i sum, __m256i w, __m256i x) {
#ifndef TALLY_EMULATE
  return _mm256_dpbusd_avx_epi32(sum, w, x);
#else
  const __m256i byte = _mm256_set1_epi16(0xFF);
  const __m256i even =
      _mm256_madd_epi16(_mm256_and_si256(w, byte), _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
#endif
}

}  // namespace TALLY_KERNELS_TIER
