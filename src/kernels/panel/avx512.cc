// Activation panels on AVX-512: as panel/avx2.cc with 16 values a step.

#include "kernels/intrin512.h"
#include "kernels/panel/quantize.h"
#include "kernels/panel/rows.h"

namespace TALLY_KERNELS_TIER {
namespace {

bool finite(const float* x, size_t n) {
  const __m512i exponent = _mm512_set1_epi32(static_cast<int32_t>(kNonfinite));
  // Largest exponent field seen.
  __m512i largest = _mm512_setzero_si512();
  for (size_t i = 0; i < n; i += 16)
    largest =
        _mm512_max_epi32(largest, _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + i)), exponent));
  alignas(64) int32_t lanes[16];
  _mm512_store_si512(lanes, largest);
  for (const int32_t lane : lanes)
    if (static_cast<uint32_t>(lane) == kNonfinite) return false;
  return true;
}

float max_magnitude(const float* x, size_t n) {
  __m512 wide = _mm512_setzero_ps();
  for (size_t i = 0; i < n; i += 16) wide = _mm512_max_ps(wide, _mm512_abs_ps(_mm512_loadu_ps(x + i)));
  const __m256 half =
      _mm256_max_ps(_mm512_castps512_ps256(wide),
                    _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(wide), 1)));
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

// 16 codes. |x * inverse| is at most 127 (1 + 2^-22), so nothing needs clamping.
__m128i codes16(const float* x, __m512 inverse) {
  return _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), inverse)));
}

int32_t sum16(__m128i q) {
  __m128i v = _mm_madd_epi16(_mm_maddubs_epi16(_mm_set1_epi8(1), q), _mm_set1_epi16(1));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
  return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xB1)));
}

// Writes n codes and calls sum(group of 16, their sum).
template <class Sum>
void quantize(const float* x, size_t n, bool zero, int8_t* q, float* d, Sum sum) {
  const float amax = zero ? 0.0f : max_magnitude(x, n);
  const bool none = amax < kAmaxMin;
  const __m512 inverse = _mm512_set1_ps(none ? 0.0f : 127.0f / amax);
  for (size_t g = 0; g < n / 16; ++g) {
    const __m128i codes = none ? _mm_setzero_si128() : codes16(x + 16 * g, inverse);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + 16 * g), codes);
    sum(g, sum16(codes));
  }
  *d = none ? 0.0f : amax / 127.0f;
}

}  // namespace

void panel_int32_avx512(const PanelArgs& a) {
  const size_t blocks = a.k / 32;
  each_panel_row(a, blocks * kInt32BlockBytes, finite, [&](const float* x, const PanelRow& row, bool zero) {
    for (size_t b = 0; b < blocks; ++b) {
      const Int32Out out = int32_out(row, b);
      *out.sum = 0;
      quantize(x + 32 * b, 32, zero, out.q, out.d, [&](size_t, int32_t sum) { *out.sum += sum; });
    }
  });
}

void panel_int256_avx512(const PanelArgs& a) {
  const size_t blocks = a.k / 256;
  each_panel_row(a, blocks * kInt256BlockBytes, finite, [&](const float* x, const PanelRow& row, bool zero) {
    for (size_t b = 0; b < blocks; ++b) {
      const Int256Out out = int256_out(row, b);
      quantize(x + 256 * b, 256, zero, out.q, out.d,
               [&](size_t g, int32_t sum) { out.sum16[g] = static_cast<int16_t>(sum); });
      for (size_t g = 0; g < 8; ++g)
        out.sum32[g] = static_cast<int16_t>(out.sum16[2 * g] + out.sum16[2 * g + 1]);
    }
  });
}

}  // namespace TALLY_KERNELS_TIER
