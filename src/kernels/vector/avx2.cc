// The vector kernels of steps.h on 8 lanes. The 16 partial sums are two registers.

#include "kernels/vector/steps.h"

namespace tally::kernels {
namespace {

struct Lanes8 {
  static constexpr size_t kLanes = 8;
  using F = __m256;
  using Mask = __m256;

  static Mask first(size_t count) { return _mm256_castsi256_ps(first_lanes(count)); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static F load_first(const float* p, size_t count) { return kernels::load_first(p, count); }
  static void store_first(float* p, size_t count, F v) { kernels::store_first(p, count, v); }
  static F set(float v) { return _mm256_set1_ps(v); }
  static F zero() { return _mm256_setzero_ps(); }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F negate(F a) { return _mm256_xor_ps(a, set(-0.0f)); }
  static F magnitude(F a) { return _mm256_andnot_ps(set(-0.0f), a); }
  static F with_sign(F magnitude, F sign) { return _mm256_or_ps(magnitude, _mm256_and_ps(sign, set(-0.0f))); }
  static Mask less(F a, F b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
  static F select(Mask m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }
  static F keep(Mask m, F v) { return _mm256_and_ps(v, m); }
  // With i = the integer that t holds (n + kRound): 2^(i >> 1) and 2^(i - (i >> 1)).
  static void power2(F t, F* first, F* second) {
    const __m256i i =
        _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(static_cast<int>(kRoundBits)));
    const __m256i half = _mm256_srai_epi32(i, 1), bias = _mm256_set1_epi32(127);
    *first = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    *second = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(i, half), bias), 23));
  }
  static __m256 eight(const F* part) { return add(part[0], part[1]); }
};

}  // namespace

const VectorKernels kVectorAvx2 = vector_kernels<Lanes8>(Isa::kAvx2);

}  // namespace tally::kernels
