// The vector kernels of steps.h on 16 lanes. The 16 partial sums are one register.

#include "kernels/intrin512.h"
#include "kernels/vector/steps.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct Lanes16 {
  static constexpr size_t kLanes = 16;
  using F = __m512;
  using Mask = __mmask16;

  static Mask first(size_t count) {
    return static_cast<Mask>(count >= kLanes ? 0xFFFFu : (1u << count) - 1u);
  }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F load_first(const float* p, size_t count) { return _mm512_maskz_loadu_ps(first(count), p); }
  static void store_first(float* p, size_t count, F v) { _mm512_mask_storeu_ps(p, first(count), v); }
  static F set(float v) { return _mm512_set1_ps(v); }
  static F zero() { return _mm512_setzero_ps(); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F div(F a, F b) { return _mm512_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  static F min(F a, F b) { return _mm512_min_ps(a, b); }
  static F max(F a, F b) { return _mm512_max_ps(a, b); }
  static __m512i bits(F a) { return _mm512_castps_si512(a); }
  static __m512i sign_bit() { return _mm512_set1_epi32(static_cast<int>(0x80000000u)); }
  static F negate(F a) { return _mm512_castsi512_ps(_mm512_xor_si512(bits(a), sign_bit())); }
  static F magnitude(F a) { return _mm512_castsi512_ps(_mm512_andnot_si512(sign_bit(), bits(a))); }
  static F with_sign(F magnitude, F sign) {
    return _mm512_castsi512_ps(_mm512_or_si512(bits(magnitude), _mm512_and_si512(bits(sign), sign_bit())));
  }
  static Mask less(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
  static F select(Mask m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
  static F keep(Mask m, F v) { return _mm512_maskz_mov_ps(m, v); }
  // With i = the integer that t holds (n + kRound): 2^(i >> 1) and 2^(i - (i >> 1)). |i| < 512.
  static void power2(F t, F* first, F* second) {
    const __m512i i = _mm512_sub_epi32(bits(t), _mm512_set1_epi32(static_cast<int>(kRoundBits)));
    const __m512i half = _mm512_sub_epi32(_mm512_srli_epi32(_mm512_add_epi32(i, _mm512_set1_epi32(512)), 1),
                                          _mm512_set1_epi32(256));
    const __m512i bias = _mm512_set1_epi32(127);
    *first = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23));
    *second = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(i, half), bias), 23));
  }
  static __m256 eight(const F* part) {
    return _mm256_add_ps(_mm512_castps512_ps256(*part),
                         _mm256_castsi256_ps(_mm512_extracti64x4_epi64(bits(*part), 1)));
  }
};

}  // namespace

extern const VectorKernels kVectorAvx512;  // vector.h declares the one that is not emulated
const VectorKernels kVectorAvx512 = vector_kernels<Lanes16>(Isa::kAvx512);

}  // namespace TALLY_KERNELS_TIER
