// The vector kernels on 8 lanes, step for step as scalar.cc and polynomials.h write them. The 16 partial sums
// are two registers. A last incomplete vector is moved with masks: lanes past the end read as 0, which leaves
// a partial sum as it is (a sum of squares is never -0), and are not written.

#include "kernels/vector/polynomials.h"
#include "kernels/vector/vector.h"

#include <immintrin.h>

namespace tally::kernels {
namespace {

// True in the first `count` lanes, count 0..8.
inline __m256i first_lanes(size_t count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
}

inline __m256 load_first(const float* p, size_t count) { return _mm256_maskload_ps(p, first_lanes(count)); }
inline void store_first(float* p, size_t count, __m256 v) { _mm256_maskstore_ps(p, first_lanes(count), v); }

inline __m256 all(float v) { return _mm256_set1_ps(v); }

inline __m256 exp_8(__m256 x) {
  x = _mm256_min_ps(all(kExpHigh), x);
  x = _mm256_max_ps(all(kExpLow), x);
  const __m256 t = _mm256_fmadd_ps(x, all(kLog2E), all(kRound));
  const __m256 n = _mm256_sub_ps(t, all(kRound));
  __m256 r = _mm256_fnmadd_ps(n, all(kLn2High), x);
  r = _mm256_fnmadd_ps(n, all(kLn2Low), r);
  __m256 q = _mm256_fmadd_ps(all(kExp4), r, all(kExp3));
  q = _mm256_fmadd_ps(q, r, all(kExp2));
  q = _mm256_fmadd_ps(q, r, all(kExp1));
  q = _mm256_fmadd_ps(q, r, all(kExp0));
  const __m256 p = _mm256_add_ps(all(1.0f), _mm256_fmadd_ps(_mm256_mul_ps(r, r), q, r));
  const __m256i i = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(static_cast<int>(kRoundBits)));
  const __m256i half = _mm256_srai_epi32(i, 1), bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

inline __m256 tanh_8(__m256 x) {
  const __m256 sign = _mm256_and_ps(x, all(-0.0f));
  const __m256 a = _mm256_xor_ps(x, sign);
  const __m256 e = exp_8(_mm256_add_ps(a, a));
  const __m256 big = _mm256_sub_ps(all(1.0f), _mm256_div_ps(all(2.0f), _mm256_add_ps(all(1.0f), e)));
  const __m256 z = _mm256_mul_ps(a, a);
  __m256 q = _mm256_fmadd_ps(all(kTanh4), z, all(kTanh3));
  q = _mm256_fmadd_ps(q, z, all(kTanh2));
  q = _mm256_fmadd_ps(q, z, all(kTanh1));
  q = _mm256_fmadd_ps(q, z, all(kTanh0));
  const __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(a, z), q, a);
  const __m256 is_small = _mm256_cmp_ps(a, all(kTanhSmall), _CMP_LT_OQ);
  return _mm256_or_ps(_mm256_blendv_ps(big, small, is_small), sign);
}

inline __m256 silu_8(__m256 x) {
  return _mm256_div_ps(x, _mm256_add_ps(all(1.0f), exp_8(_mm256_xor_ps(x, all(-0.0f)))));
}

inline __m256 gelu_8(__m256 x) {
  const __m256 factor = _mm256_fmadd_ps(_mm256_mul_ps(x, x), all(kGelu1), all(kGelu0));
  return _mm256_div_ps(x, _mm256_add_ps(all(1.0f), exp_8(_mm256_mul_ps(x, factor))));
}

// out[i] = f(x[i], y[i]) for all i < n.
template <class F>
inline __attribute__((always_inline)) void each(const float* x, const float* y, size_t n, float* out, F f) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, f(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
  if (i < n) store_first(out + i, n - i, f(load_first(x + i, n - i), load_first(y + i, n - i)));
}

void rms_norm(const float* x, const float* w, float eps, size_t n, float* y) {
  __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
    low = _mm256_fmadd_ps(a, a, low);
    high = _mm256_fmadd_ps(b, b, high);
  }
  if (i < n) {
    const size_t rest = n - i;
    const __m256 a = load_first(x + i, rest < 8 ? rest : 8);
    low = _mm256_fmadd_ps(a, a, low);
    if (rest > 8) {
      const __m256 b = load_first(x + i + 8, rest - 8);
      high = _mm256_fmadd_ps(b, b, high);
    }
  }
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  const float sum = _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  const float mean = sum / static_cast<float>(n);
  const __m256 inverse = all(1.0f / __builtin_sqrtf(mean + eps));
  each(x, w, n, y, [inverse](__m256 a, __m256 b) { return _mm256_mul_ps(_mm256_mul_ps(a, inverse), b); });
}

void add(const float* x, size_t n, float* y) {
  each(y, x, n, y, [](__m256 a, __m256 b) { return _mm256_add_ps(a, b); });
}

void scale(float a, size_t n, float* y) {
  const __m256 factor = all(a);
  each(y, y, n, y, [factor](__m256 v, __m256) { return _mm256_mul_ps(v, factor); });
}

void silu_mul(const float* gate, const float* up, size_t n, float* out) {
  each(gate, up, n, out, [](__m256 g, __m256 u) { return _mm256_mul_ps(silu_8(g), u); });
}

void gelu_mul(const float* gate, const float* up, size_t n, float* out) {
  each(gate, up, n, out, [](__m256 g, __m256 u) { return _mm256_mul_ps(gelu_8(g), u); });
}

void softcap(float cap, size_t n, float* y) {
  const __m256 c = all(cap);
  each(y, y, n, y, [c](__m256 v, __m256) { return _mm256_mul_ps(c, tanh_8(_mm256_div_ps(v, c))); });
}

// Four pairs (a, b) in neighbouring lanes. fmaddsub subtracts in even lanes: a cos - (b sin), a sin + (b
// cos).
inline __m256 rotate_neighbours(__m256 v, __m256 cos_sin) {
  const __m256 sin_cos = _mm256_permute_ps(cos_sin, 0xB1);
  return _mm256_fmaddsub_ps(_mm256_moveldup_ps(v), cos_sin, _mm256_mul_ps(_mm256_movehdup_ps(v), sin_cos));
}

void rope_norm(const float* cos_sin, size_t pairs, float* head) {
  each(head, cos_sin, 2 * pairs, head, [](__m256 v, __m256 c) { return rotate_neighbours(v, c); });
}

// Eight (cos, sin) pairs from two registers to one of cos and one of sin.
inline void split_pairs(__m256 first, __m256 second, __m256* cosine, __m256* sine) {
  const __m256 a = _mm256_permute2f128_ps(first, second, 0x20);  // pairs 0 1 4 5
  const __m256 b = _mm256_permute2f128_ps(first, second, 0x31);  // pairs 2 3 6 7
  *cosine = _mm256_shuffle_ps(a, b, 0x88);
  *sine = _mm256_shuffle_ps(a, b, 0xDD);
}

void rope_neox(const float* cos_sin, size_t pairs, float* head) {
  float* other = head + pairs;
  __m256 cosine, sine;
  size_t i = 0;
  for (; i + 8 <= pairs; i += 8) {
    split_pairs(_mm256_loadu_ps(cos_sin + 2 * i), _mm256_loadu_ps(cos_sin + 2 * i + 8), &cosine, &sine);
    const __m256 a = _mm256_loadu_ps(head + i), b = _mm256_loadu_ps(other + i);
    _mm256_storeu_ps(head + i, _mm256_fmsub_ps(a, cosine, _mm256_mul_ps(b, sine)));
    _mm256_storeu_ps(other + i, _mm256_fmadd_ps(a, sine, _mm256_mul_ps(b, cosine)));
  }
  if (i == pairs) return;
  const size_t rest = pairs - i, low = rest < 4 ? rest : 4;
  const float* table = cos_sin + 2 * i;
  split_pairs(load_first(table, 2 * low), load_first(table + 2 * low, 2 * (rest - low)), &cosine, &sine);
  const __m256 a = load_first(head + i, rest), b = load_first(other + i, rest);
  store_first(head + i, rest, _mm256_fmsub_ps(a, cosine, _mm256_mul_ps(b, sine)));
  store_first(other + i, rest, _mm256_fmadd_ps(a, sine, _mm256_mul_ps(b, cosine)));
}

}  // namespace

const VectorKernels kVectorAvx2 = {rms_norm, add,       scale,     silu_mul,  gelu_mul,
                                   softcap,  rope_norm, rope_neox, Isa::kAvx2};

}  // namespace tally::kernels
