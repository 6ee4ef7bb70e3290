#pragma once
// The table of IQ4 as vpshufb wants it on AVX2. vpmaddubsw would saturate on the values themselves (as on
// Q8_0's, q8_0/avx2.cc), so value + 128 = 16 h + l, 1..241, and h and l, 0..15 each, have a table of their
// own: codes like those of Q4, whose products fit 16 bits for a whole block of 32. Static, see panel.h.

#include "tensor/blocks.h"

#include <immintrin.h>

namespace tally::kernels {

struct Iq4Planes {
  __m256i high, low;
};

static inline Iq4Planes iq4_planes() {
  const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tensor::kIq4Values));
  const __m256i shifted = _mm256_broadcastsi128_si256(_mm_xor_si128(values, _mm_set1_epi8(-128)));
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(_mm256_srli_epi16(shifted, 4), mask), _mm256_and_si256(shifted, mask)};
}

}  // namespace tally::kernels
