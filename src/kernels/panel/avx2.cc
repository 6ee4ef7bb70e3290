// Activation panels on AVX2: 32 values a step. The largest magnitude and the integer sums do not depend on
// their order, the rest is one multiplication and one rounding a value. The F32 panel is a transposition of 8
// tokens x 8 values at a time.

#include "kernels/panel/quantize.h"
#include "kernels/panel/rows.h"

#include <immintrin.h>

namespace tally::kernels {
namespace {

__m256 magnitude(__m256 x) { return _mm256_and_ps(x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF))); }

bool finite(const float* x, size_t n) {
  const __m256i exponent = _mm256_set1_epi32(static_cast<int32_t>(kNonfinite));
  __m256i bad = _mm256_setzero_si256();
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i bits = _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), exponent);
    bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(bits, exponent));
  }
  for (; i < n; ++i) {
    uint32_t bits;
    __builtin_memcpy(&bits, x + i, 4);
    if ((bits & kNonfinite) == kNonfinite) return false;
  }
  return _mm256_testz_si256(bad, bad) != 0;
}

float max_lane(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

float max_magnitude(const float* x, size_t n) {
  __m256 amax = _mm256_setzero_ps();
  for (size_t i = 0; i < n; i += 8) amax = _mm256_max_ps(amax, magnitude(_mm256_loadu_ps(x + i)));
  return max_lane(amax);
}

// 32 codes. |x * inverse| is at most 127 (1 + 2^-22), so nothing needs clamping.
__m256i codes32(const float* x, __m256 inverse) {
  __m256i q[4];
  for (size_t i = 0; i < 4; ++i)
    q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inverse));
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

// Sums of four codes each.
__m256i sums_of_4(__m256i q) {
  return _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), q), _mm256_set1_epi16(1));
}

int32_t add_lanes(__m128i v) {
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4E));
  v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0xB1));
  return _mm_cvtsi128_si32(v);
}

// Rows 0..7 of 8 values each, turned.
void transpose8(__m256 (&r)[8]) {
  __m256 a[8], b[8];
  for (size_t i = 0; i < 8; i += 2) {
    a[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    a[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (size_t i = 0; i < 8; i += 4)
    for (size_t j = 0; j < 2; ++j) {
      b[i + 2 * j] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0x44);
      b[i + 2 * j + 1] = _mm256_shuffle_ps(a[i + j], a[i + j + 2], 0xEE);
    }
  for (size_t i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(b[i], b[i + 4], 0x31);
  }
}

// The rows of one tile, already known to be finite or to count as zero.
void transpose_tile(const PanelArgs& a, size_t begin, size_t tokens, const bool (&zero)[kPanelTile],
                    float* out) {
  if (tokens == 1) {  // one row lies as it is
    if (zero[0])
      __builtin_memset(out, 0, a.k * sizeof(float));
    else
      __builtin_memcpy(out, a.x + begin * a.x_stride, a.k * sizeof(float));
    return;
  }
  for (size_t t0 = 0; t0 < tokens; t0 += 8) {
    const size_t count = tokens - t0 < 8 ? tokens - t0 : 8;
    for (size_t k = 0; k < a.k; k += 8) {
      const size_t width = a.k - k < 8 ? a.k - k : 8;
      __m256 rows[8];
      for (size_t t = 0; t < 8; ++t) {
        rows[t] = _mm256_setzero_ps();
        if (t >= count || zero[t0 + t]) continue;
        const float* x = a.x + (begin + t0 + t) * a.x_stride + k;
        if (width == 8) {
          rows[t] = _mm256_loadu_ps(x);
        } else {
          float some[8] = {};
          __builtin_memcpy(some, x, width * sizeof(float));
          rows[t] = _mm256_loadu_ps(some);
        }
      }
      transpose8(rows);
      for (size_t i = 0; i < width; ++i) {
        float* to = out + (k + i) * tokens + t0;
        if (count == 8) {
          _mm256_storeu_ps(to, rows[i]);
        } else {
          float some[8];
          _mm256_storeu_ps(some, rows[i]);
          __builtin_memcpy(to, some, count * sizeof(float));
        }
      }
    }
  }
}

}  // namespace

void panel_f32_avx2(const PanelArgs& a) {
  for (size_t begin = a.token_begin; begin < a.token_end; begin += kPanelTile) {
    const size_t tokens = a.token_end - begin < kPanelTile ? a.token_end - begin : kPanelTile;
    bool zero[kPanelTile];
    for (size_t t = 0; t < tokens; ++t) {
      zero[t] = !finite(a.x + (begin + t) * a.x_stride, a.k);
      if (zero[t]) a.nonfinite[begin + t] = 1;
    }
    transpose_tile(a, begin, tokens, zero, reinterpret_cast<float*>(a.panel) + begin * a.k);
  }
}

void panel_int32_avx2(const PanelArgs& a) {
  const size_t blocks = a.k / 32;
  each_panel_row(a, blocks * kInt32BlockBytes, finite, [&](const float* x, const PanelRow& row, bool zero) {
    for (size_t b = 0; b < blocks; ++b) {
      const Int32Out out = int32_out(row, b);
      const float amax = zero ? 0.0f : max_magnitude(x + 32 * b, 32);
      const bool none = amax < kAmaxMin;
      const __m256i q = none ? _mm256_setzero_si256() : codes32(x + 32 * b, _mm256_set1_ps(127.0f / amax));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.q), q);
      *out.d = none ? 0.0f : amax / 127.0f;
      const __m256i sums = sums_of_4(q);
      *out.sum = add_lanes(_mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1)));
    }
  });
}

void panel_int256_avx2(const PanelArgs& a) {
  const size_t blocks = a.k / 256;
  each_panel_row(a, blocks * kInt256BlockBytes, finite, [&](const float* x, const PanelRow& row, bool zero) {
    for (size_t b = 0; b < blocks; ++b) {
      const Int256Out out = int256_out(row, b);
      const float amax = zero ? 0.0f : max_magnitude(x + 256 * b, 256);
      const bool none = amax < kAmaxMin;
      const __m256 inverse = _mm256_set1_ps(none ? 0.0f : 127.0f / amax);
      for (size_t g = 0; g < 8; ++g) {
        const __m256i q = none ? _mm256_setzero_si256() : codes32(x + 256 * b + 32 * g, inverse);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out.q + 32 * g), q);
        const __m256i sums = sums_of_4(q);
        const int32_t low = add_lanes(_mm256_castsi256_si128(sums)),
                      high = add_lanes(_mm256_extracti128_si256(sums, 1));
        out.sum16[2 * g] = static_cast<int16_t>(low);
        out.sum16[2 * g + 1] = static_cast<int16_t>(high);
        out.sum32[g] = static_cast<int16_t>(low + high);
      }
      *out.d = none ? 0.0f : amax / 127.0f;
    }
  });
}

}  // namespace tally::kernels
