// The vector kernels on 8 lanes, step for step as scalar.cc and polynomials.h write them. The 16 partial sums
// are two registers. A last incomplete vector is moved with masks: lanes past the end read as 0, which leaves
// a partial sum as it is (one that starts at +0 is never -0), and are not written.

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

inline __m256 negated(__m256 x) { return _mm256_xor_ps(x, all(-0.0f)); }

inline __m256 sigmoid_8(__m256 x) {
  return _mm256_div_ps(all(1.0f), _mm256_add_ps(all(1.0f), exp_8(negated(x))));
}

inline __m256 silu_8(__m256 x) { return _mm256_div_ps(x, _mm256_add_ps(all(1.0f), exp_8(negated(x)))); }

inline __m256 gelu_8(__m256 x) {
  const __m256 factor = _mm256_fmadd_ps(_mm256_mul_ps(x, x), all(kGelu1), all(kGelu0));
  return _mm256_div_ps(x, _mm256_add_ps(all(1.0f), exp_8(_mm256_mul_ps(x, factor))));
}

inline __m256 gelu_erf_8(__m256 x) {
  const __m256 a = _mm256_andnot_ps(all(-0.0f), x);
  const __m256 u = _mm256_div_ps(all(1.0f), _mm256_fmadd_ps(all(kTailSlope), a, all(1.0f)));
  __m256 q = _mm256_fmadd_ps(all(kTail7), u, all(kTail6));
  q = _mm256_fmadd_ps(q, u, all(kTail5));
  q = _mm256_fmadd_ps(q, u, all(kTail4));
  q = _mm256_fmadd_ps(q, u, all(kTail3));
  q = _mm256_fmadd_ps(q, u, all(kTail2));
  q = _mm256_fmadd_ps(q, u, all(kTail1));
  q = _mm256_fmadd_ps(q, u, all(kTail0));
  const __m256 exponential = exp_8(_mm256_mul_ps(_mm256_mul_ps(a, a), all(-0.5f)));
  const __m256 tail = _mm256_mul_ps(exponential, _mm256_mul_ps(q, u));
  const __m256 negative = _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ);
  return _mm256_mul_ps(x, _mm256_blendv_ps(_mm256_sub_ps(all(1.0f), tail), tail, negative));
}

inline __m256 relu2_8(__m256 x) {
  const __m256 positive = _mm256_max_ps(_mm256_setzero_ps(), x);
  return _mm256_mul_ps(positive, positive);
}

// The second operand wins where one is NaN: x stays.
inline __m256 within(__m256 x, __m256 limit) {
  return _mm256_max_ps(negated(limit), _mm256_min_ps(limit, x));
}

// out[i] = f(x[i], y[i]) for all i < n.
template <class F>
inline __attribute__((always_inline)) void each(const float* x, const float* y, size_t n, float* out, F f) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, f(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
  if (i < n) store_first(out + i, n - i, f(load_first(x + i, n - i), load_first(y + i, n - i)));
}

// Sum over i of f(part, x[i], lanes), f adding to the partial sums the lanes of x that exist.
template <class F>
inline __attribute__((always_inline)) float strided_sum(const float* x, size_t n, F f) {
  const __m256 every = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
  __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    low = f(low, _mm256_loadu_ps(x + i), every);
    high = f(high, _mm256_loadu_ps(x + i + 8), every);
  }
  if (i < n) {
    const size_t rest = n - i, first = rest < 8 ? rest : 8;
    low = f(low, load_first(x + i, first), _mm256_castsi256_ps(first_lanes(first)));
    if (rest > 8) high = f(high, load_first(x + i + 8, rest - 8), _mm256_castsi256_ps(first_lanes(rest - 8)));
  }
  const __m256 eight = _mm256_add_ps(low, high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

void rms_norm(const float* x, const float* w, float eps, size_t n, float* y) {
  const float sum =
      strided_sum(x, n, [](__m256 part, __m256 v, __m256) { return _mm256_fmadd_ps(v, v, part); });
  const float mean = sum / static_cast<float>(n);
  const __m256 inverse = all(1.0f / __builtin_sqrtf(mean + eps));
  each(x, w, n, y, [inverse](__m256 a, __m256 b) { return _mm256_mul_ps(_mm256_mul_ps(a, inverse), b); });
}

void add(const float* x, size_t n, float* y) {
  each(y, x, n, y, [](__m256 a, __m256 b) { return _mm256_add_ps(a, b); });
}

void add_scaled(float a, const float* x, size_t n, float* y) {
  const __m256 factor = all(a);
  each(y, x, n, y, [factor](__m256 v, __m256 u) { return _mm256_fmadd_ps(factor, u, v); });
}

void mul(const float* x, size_t n, float* y) {
  each(y, x, n, y, [](__m256 a, __m256 b) { return _mm256_mul_ps(a, b); });
}

void layer_norm(const float* x, const float* w, const float* b, float eps, size_t n, float* y) {
  const float sum = strided_sum(x, n, [](__m256 part, __m256 v, __m256) { return _mm256_add_ps(part, v); });
  const __m256 mean = all(sum / static_cast<float>(n));
  const float squares = strided_sum(x, n, [mean](__m256 part, __m256 v, __m256 lanes) {
    const __m256 d = _mm256_and_ps(_mm256_sub_ps(v, mean), lanes);
    return _mm256_fmadd_ps(d, d, part);
  });
  const __m256 inverse = all(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
  each(x, x, n, y,
       [mean, inverse](__m256 v, __m256) { return _mm256_mul_ps(_mm256_sub_ps(v, mean), inverse); });
  if (w != nullptr) mul(w, n, y);
  if (b != nullptr) add(b, n, y);
}

void scale(float a, size_t n, float* y) {
  const __m256 factor = all(a);
  each(y, y, n, y, [factor](__m256 v, __m256) { return _mm256_mul_ps(v, factor); });
}

void sigmoid_scale(float logit, size_t n, float* y) { scale(_mm256_cvtss_f32(sigmoid_8(all(logit))), n, y); }

void clamp(float limit, size_t n, float* y) {
  const __m256 most = all(limit);
  each(y, y, n, y, [most](__m256 v, __m256) { return within(v, most); });
}

void softcap(float cap, size_t n, float* y) {
  const __m256 c = all(cap);
  each(y, y, n, y, [c](__m256 v, __m256) { return _mm256_mul_ps(c, tanh_8(_mm256_div_ps(v, c))); });
}

template <__m256 (*Act)(__m256)>
void activate(const float* x, const float* up, size_t n, float* out) {
  if (up == nullptr)
    each(x, x, n, out, [](__m256 v, __m256) { return Act(v); });
  else
    each(x, up, n, out, [](__m256 v, __m256 u) { return _mm256_mul_ps(Act(v), u); });
}

void swiglu_oai(const float* gate, const float* up, float alpha, float limit, size_t n, float* out) {
  const __m256 most = all(limit), slope = all(alpha);
  each(gate, up, n, out, [most, slope](__m256 g, __m256 u) {
    g = _mm256_min_ps(most, g);
    const __m256 exponential = exp_8(negated(_mm256_mul_ps(slope, g)));
    const __m256 gated = _mm256_div_ps(g, _mm256_add_ps(all(1.0f), exponential));
    return _mm256_mul_ps(gated, _mm256_add_ps(within(u, most), all(1.0f)));
  });
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

const VectorKernels kVectorAvx2 = {.rms_norm = rms_norm,
                                   .layer_norm = layer_norm,
                                   .add = add,
                                   .add_scaled = add_scaled,
                                   .mul = mul,
                                   .scale = scale,
                                   .sigmoid_scale = sigmoid_scale,
                                   .clamp = clamp,
                                   .softcap = softcap,
                                   .silu_mul = activate<silu_8>,
                                   .gelu_mul = activate<gelu_8>,
                                   .gelu_erf_mul = activate<gelu_erf_8>,
                                   .relu2_mul = activate<relu2_8>,
                                   .swiglu_oai = swiglu_oai,
                                   .rope_norm = rope_norm,
                                   .rope_neox = rope_neox,
                                   .isa = Isa::kAvx2};

}  // namespace tally::kernels
