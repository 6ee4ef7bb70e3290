#pragma once
// The vector kernels on the lanes of V (Lanes8 of avx2.cc, Lanes16 of avx512.cc), step for step as scalar.cc
// and polynomials.h write them. A last incomplete vector is moved with masks: lanes past the end read as 0,
// which leaves a partial sum as it is (one that starts at +0 is never -0), and are not written. Internal
// linkage: included by objects of several ISAs.
//
// V: F and Mask; kLanes; load store load_first store_first first; set zero add sub mul div fma fnma (c - a *
// b); min max as the instructions act (the second operand where one is NaN); negate magnitude with_sign; less
// select keep; power2 (see exp); eight (of 16 partial sums those of lanes i and i + 8 added).

#include "kernels/vector/polynomials.h"
#include "kernels/vector/vector.h"

#include <immintrin.h>

namespace tally::kernels {
namespace {

#define TALLY_INLINE __attribute__((always_inline))

template <class V>
struct VectorSteps {
  using F = typename V::F;
  using Mask = typename V::Mask;

  static TALLY_INLINE F exp(F x) {
    x = V::min(V::set(kExpHigh), x);
    x = V::max(V::set(kExpLow), x);
    const F t = V::fma(x, V::set(kLog2E), V::set(kRound));
    const F n = V::sub(t, V::set(kRound));
    F r = V::fnma(n, V::set(kLn2High), x);
    r = V::fnma(n, V::set(kLn2Low), r);
    F q = V::fma(V::set(kExp4), r, V::set(kExp3));
    q = V::fma(q, r, V::set(kExp2));
    q = V::fma(q, r, V::set(kExp1));
    q = V::fma(q, r, V::set(kExp0));
    const F p = V::add(V::set(1.0f), V::fma(V::mul(r, r), q, r));
    F first, second;  // 2^n in two factors
    V::power2(t, &first, &second);
    return V::mul(V::mul(p, first), second);
  }

  static TALLY_INLINE F tanh(F x) {
    const F a = V::magnitude(x);
    const F e = exp(V::add(a, a));
    const F big = V::sub(V::set(1.0f), V::div(V::set(2.0f), V::add(V::set(1.0f), e)));
    const F z = V::mul(a, a);
    F q = V::fma(V::set(kTanh4), z, V::set(kTanh3));
    q = V::fma(q, z, V::set(kTanh2));
    q = V::fma(q, z, V::set(kTanh1));
    q = V::fma(q, z, V::set(kTanh0));
    const F small = V::fma(V::mul(a, z), q, a);
    return V::with_sign(V::select(V::less(a, V::set(kTanhSmall)), small, big), x);
  }

  static TALLY_INLINE F sigmoid(F x) { return V::div(V::set(1.0f), V::add(V::set(1.0f), exp(V::negate(x)))); }
  static TALLY_INLINE F silu(F x) { return V::div(x, V::add(V::set(1.0f), exp(V::negate(x)))); }
  static TALLY_INLINE F gelu(F x) {
    const F factor = V::fma(V::mul(x, x), V::set(kGelu1), V::set(kGelu0));
    return V::div(x, V::add(V::set(1.0f), exp(V::mul(x, factor))));
  }
  static TALLY_INLINE F gelu_erf(F x) {
    const F a = V::magnitude(x);
    const F u = V::div(V::set(1.0f), V::fma(V::set(kTailSlope), a, V::set(1.0f)));
    F q = V::fma(V::set(kTail7), u, V::set(kTail6));
    q = V::fma(q, u, V::set(kTail5));
    q = V::fma(q, u, V::set(kTail4));
    q = V::fma(q, u, V::set(kTail3));
    q = V::fma(q, u, V::set(kTail2));
    q = V::fma(q, u, V::set(kTail1));
    q = V::fma(q, u, V::set(kTail0));
    const F tail = V::mul(exp(V::mul(V::mul(a, a), V::set(-0.5f))), V::mul(q, u));
    return V::mul(x, V::select(V::less(x, V::zero()), tail, V::sub(V::set(1.0f), tail)));
  }
  static TALLY_INLINE F relu2(F x) {
    const F positive = V::max(V::zero(), x);
    return V::mul(positive, positive);
  }
  // The second operand wins where one is NaN: x stays.
  static TALLY_INLINE F within(F x, F limit) { return V::max(V::negate(limit), V::min(limit, x)); }

  // out[i] = f(x[i], y[i]) for all i < n.
  template <class Each>
  static TALLY_INLINE void each(const float* x, const float* y, size_t n, float* out, Each f) {
    size_t i = 0;
    for (; i + V::kLanes <= n; i += V::kLanes) V::store(out + i, f(V::load(x + i), V::load(y + i)));
    if (i < n) V::store_first(out + i, n - i, f(V::load_first(x + i, n - i), V::load_first(y + i, n - i)));
  }

  // Sum over i of f(part, x[i], lanes), f adding to the partial sums the lanes of x that exist.
  template <class Add>
  static TALLY_INLINE float strided_sum(const float* x, size_t n, Add f) {
    constexpr size_t kRegisters = 16 / V::kLanes;
    F part[kRegisters];
    for (F& p : part) p = V::zero();
    size_t i = 0;
    for (; i + 16 <= n; i += 16)
      for (size_t r = 0; r < kRegisters; ++r)
        part[r] = f(part[r], V::load(x + i + r * V::kLanes), V::first(V::kLanes));
    for (size_t r = 0; r < kRegisters && i < n; ++r, i += V::kLanes)
      part[r] = f(part[r], V::load_first(x + i, n - i), V::first(n - i));
    const __m256 eight = V::eight(part);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  static void rms_norm(const float* x, const float* w, float eps, size_t n, float* y) {
    const float sum = strided_sum(x, n, [](F part, F v, Mask) { return V::fma(v, v, part); });
    const float mean = sum / static_cast<float>(n);
    const F inverse = V::set(1.0f / __builtin_sqrtf(mean + eps));
    each(x, w, n, y, [inverse](F a, F b) { return V::mul(V::mul(a, inverse), b); });
  }
  static void layer_norm(const float* x, const float* w, const float* b, float eps, size_t n, float* y) {
    const float sum = strided_sum(x, n, [](F part, F v, Mask) { return V::add(part, v); });
    const F mean = V::set(sum / static_cast<float>(n));
    const float squares = strided_sum(x, n, [mean](F part, F v, Mask lanes) {
      const F d = V::keep(lanes, V::sub(v, mean));
      return V::fma(d, d, part);
    });
    const F inverse = V::set(1.0f / __builtin_sqrtf(squares / static_cast<float>(n) + eps));
    each(x, x, n, y, [mean, inverse](F v, F) { return V::mul(V::sub(v, mean), inverse); });
    if (w != nullptr) mul(w, n, y);
    if (b != nullptr) add(b, n, y);
  }
  static void add(const float* x, size_t n, float* y) {
    each(y, x, n, y, [](F a, F b) { return V::add(a, b); });
  }
  static void add_scaled(float a, const float* x, size_t n, float* y) {
    const F factor = V::set(a);
    each(y, x, n, y, [factor](F v, F u) { return V::fma(factor, u, v); });
  }
  static void mul(const float* x, size_t n, float* y) {
    each(y, x, n, y, [](F a, F b) { return V::mul(a, b); });
  }
  static void scale(float a, size_t n, float* y) {
    const F factor = V::set(a);
    each(y, y, n, y, [factor](F v, F) { return V::mul(v, factor); });
  }
  static void sigmoid_scale(float logit, size_t n, float* y) {
    float gate[V::kLanes];
    V::store(gate, sigmoid(V::set(logit)));
    scale(gate[0], n, y);
  }
  static void clamp(float limit, size_t n, float* y) {
    const F most = V::set(limit);
    each(y, y, n, y, [most](F v, F) { return within(v, most); });
  }
  static void softcap(float cap, size_t n, float* y) {
    const F c = V::set(cap);
    each(y, y, n, y, [c](F v, F) { return V::mul(c, tanh(V::div(v, c))); });
  }
  template <F (*Act)(F)>
  static void activate(const float* x, const float* up, size_t n, float* out) {
    if (up == nullptr)
      each(x, x, n, out, [](F v, F) { return Act(v); });
    else
      each(x, up, n, out, [](F v, F u) { return V::mul(Act(v), u); });
  }
  static void swiglu_oai(const float* gate, const float* up, float alpha, float limit, size_t n, float* out) {
    const F most = V::set(limit), slope = V::set(alpha);
    each(gate, up, n, out, [most, slope](F g, F u) {
      g = V::min(most, g);
      const F gated = V::div(g, V::add(V::set(1.0f), exp(V::negate(V::mul(slope, g)))));
      return V::mul(gated, V::add(within(u, most), V::set(1.0f)));
    });
  }
};

// ---- Rotations: on 8 lanes in every tier, a head is short
// ----------------------------------------------------

// True in the first `count` lanes, count 0..8.
inline __m256i first_lanes(size_t count) {
  const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
}
inline __m256 load_first(const float* p, size_t count) { return _mm256_maskload_ps(p, first_lanes(count)); }
inline void store_first(float* p, size_t count, __m256 v) { _mm256_maskstore_ps(p, first_lanes(count), v); }

// Four pairs (a, b) in neighbouring lanes. fmaddsub subtracts in even lanes: a cos - (b sin), a sin + (b
// cos).
inline __m256 rotate_neighbours(__m256 v, __m256 cos_sin) {
  const __m256 sin_cos = _mm256_permute_ps(cos_sin, 0xB1);
  return _mm256_fmaddsub_ps(_mm256_moveldup_ps(v), cos_sin, _mm256_mul_ps(_mm256_movehdup_ps(v), sin_cos));
}

inline void rope_norm(const float* cos_sin, size_t pairs, float* head) {
  size_t i = 0;
  for (; i + 8 <= 2 * pairs; i += 8)
    _mm256_storeu_ps(head + i, rotate_neighbours(_mm256_loadu_ps(head + i), _mm256_loadu_ps(cos_sin + i)));
  const size_t rest = 2 * pairs - i;
  if (rest != 0)
    store_first(head + i, rest, rotate_neighbours(load_first(head + i, rest), load_first(cos_sin + i, rest)));
}

// Eight (cos, sin) pairs from two registers to one of cos and one of sin.
inline void split_pairs(__m256 first, __m256 second, __m256* cosine, __m256* sine) {
  const __m256 a = _mm256_permute2f128_ps(first, second, 0x20);  // pairs 0 1 4 5
  const __m256 b = _mm256_permute2f128_ps(first, second, 0x31);  // pairs 2 3 6 7
  *cosine = _mm256_shuffle_ps(a, b, 0x88);
  *sine = _mm256_shuffle_ps(a, b, 0xDD);
}

inline void rope_neox(const float* cos_sin, size_t pairs, float* head) {
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

template <class V>
constexpr VectorKernels vector_kernels(Isa isa) {
  using S = VectorSteps<V>;
  return {.rms_norm = S::rms_norm,
          .layer_norm = S::layer_norm,
          .add = S::add,
          .add_scaled = S::add_scaled,
          .mul = S::mul,
          .scale = S::scale,
          .sigmoid_scale = S::sigmoid_scale,
          .clamp = S::clamp,
          .softcap = S::softcap,
          .silu_mul = S::template activate<S::silu>,
          .gelu_mul = S::template activate<S::gelu>,
          .gelu_erf_mul = S::template activate<S::gelu_erf>,
          .relu2_mul = S::template activate<S::relu2>,
          .swiglu_oai = S::swiglu_oai,
          .rope_norm = rope_norm,
          .rope_neox = rope_neox,
          .isa = isa};
}

}  // namespace
}  // namespace tally::kernels
