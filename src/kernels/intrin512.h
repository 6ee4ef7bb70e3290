#pragma once
// The AVX-512 intrinsics, native or emulated. Files of the tiers avx512, avx512vnni and amx include this
// instead of <immintrin.h>; see tier.h. The emulation is SIMDe with AVX2 flags; SIMDe 0.7 lacks some
// intrinsics: the section below has those our kernels use, as two AVX2 halves each.

#include "kernels/tier.h"

#ifndef TALLY_EMULATE

#include <immintrin.h>

#else

#include "kernels/intrin_vnni.h"

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <immintrin.h>
#include <simde/x86/avx512.h>

namespace TALLY_KERNELS_TIER {
namespace {

inline __m256i low256(simde__m512i v) { return simde_mm512_castsi512_si256(v); }
inline __m256i high256(simde__m512i v) { return simde_mm512_extracti64x4_epi64(v, 1); }
inline simde__m512i join(__m256i low, __m256i high) {
  return simde_mm512_inserti64x4(simde_mm512_castsi256_si512(low), high, 1);
}
inline simde__m512 join(__m256 low, __m256 high) {
  return simde_mm512_castsi512_ps(join(_mm256_castps_si256(low), _mm256_castps_si256(high)));
}
inline __m256 low256(simde__m512 v) { return _mm256_castsi256_ps(low256(simde_mm512_castps_si512(v))); }
inline __m256 high256(simde__m512 v) { return _mm256_castsi256_ps(high256(simde_mm512_castps_si512(v))); }
inline __m128i high128(__m256i v) { return _mm256_extracti128_si256(v, 1); }
inline __m128i upper8(__m128i v) { return _mm_srli_si128(v, 8); }

inline simde__m512 emulated_cvtph_ps(__m256i v) {
  return join(_mm256_cvtph_ps(_mm256_castsi256_si128(v)), _mm256_cvtph_ps(high128(v)));
}
inline simde__m512 emulated_cvtepi32_ps(simde__m512i v) {
  return join(_mm256_cvtepi32_ps(low256(v)), _mm256_cvtepi32_ps(high256(v)));
}
inline simde__m512i emulated_cvtps_epi32(simde__m512 v) {
  return join(_mm256_cvtps_epi32(low256(v)), _mm256_cvtps_epi32(high256(v)));
}
inline simde__m512i emulated_cvttps_epi32(simde__m512 v) {
  return join(_mm256_cvttps_epi32(low256(v)), _mm256_cvttps_epi32(high256(v)));
}
inline simde__m512i emulated_cvtepu8_epi32(__m128i v) {
  return join(_mm256_cvtepu8_epi32(v), _mm256_cvtepu8_epi32(upper8(v)));
}
inline simde__m512i emulated_cvtepi8_epi32(__m128i v) {
  return join(_mm256_cvtepi8_epi32(v), _mm256_cvtepi8_epi32(upper8(v)));
}
inline simde__m512i emulated_cvtepi16_epi32(__m256i v) {
  return join(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(v)), _mm256_cvtepi16_epi32(high128(v)));
}
inline simde__m512i emulated_cvtepu16_epi32(__m256i v) {
  return join(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(v)), _mm256_cvtepu16_epi32(high128(v)));
}
inline simde__m512i emulated_cvtepu8_epi16(__m256i v) {
  return join(_mm256_cvtepu8_epi16(_mm256_castsi256_si128(v)), _mm256_cvtepu8_epi16(high128(v)));
}
inline simde__m512i emulated_madd_epi16(simde__m512i a, simde__m512i b) {
  return join(_mm256_madd_epi16(low256(a), low256(b)), _mm256_madd_epi16(high256(a), high256(b)));
}
// Out of line: a tile has a hundred of these, and SIMDe's own take minutes to compile.
__attribute__((noinline)) simde__m512i emulated_dpbusd_epi32(simde__m512i sum, simde__m512i w,
                                                             simde__m512i x) {
  return join(dpbusd_256(low256(sum), low256(w), low256(x)),
              dpbusd_256(high256(sum), high256(w), high256(x)));
}
__attribute__((noinline)) simde__m512i emulated_dpwssd_epi32(simde__m512i sum, simde__m512i a,
                                                             simde__m512i b) {
  const simde__m512i products = emulated_madd_epi16(a, b);
  return join(_mm256_add_epi32(low256(sum), low256(products)),
              _mm256_add_epi32(high256(sum), high256(products)));
}
inline void emulated_stream_ps(float* p, simde__m512 v) { simde_mm512_store_ps(p, v); }
inline void emulated_mask_storeu_ps(void* p, unsigned mask, simde__m512 v) {
  alignas(64) float lanes[16];
  simde_mm512_store_ps(lanes, v);
  for (unsigned i = 0; i < 16; ++i)
    if ((mask >> i) & 1u) static_cast<float*>(p)[i] = lanes[i];
}
inline simde__m512 emulated_maskz_loadu_ps(unsigned mask, const void* p) {
  alignas(64) float lanes[16] = {};
  for (unsigned i = 0; i < 16; ++i)
    if ((mask >> i) & 1u) lanes[i] = static_cast<const float*>(p)[i];
  return simde_mm512_load_ps(lanes);
}

}  // namespace
}  // namespace TALLY_KERNELS_TIER

#define _mm512_cvtph_ps(v) emulated_cvtph_ps(v)
#define _mm512_cvtepi32_ps(v) emulated_cvtepi32_ps(v)
#define _mm512_cvtps_epi32(v) emulated_cvtps_epi32(v)
#define _mm512_cvttps_epi32(v) emulated_cvttps_epi32(v)
#define _mm512_cvtepu8_epi32(v) emulated_cvtepu8_epi32(v)
#define _mm512_cvtepi8_epi32(v) emulated_cvtepi8_epi32(v)
#define _mm512_cvtepi16_epi32(v) emulated_cvtepi16_epi32(v)
#define _mm512_cvtepu16_epi32(v) emulated_cvtepu16_epi32(v)
#define _mm512_cvtepu8_epi16(v) emulated_cvtepu8_epi16(v)
#undef _mm512_madd_epi16  // SIMDe's alias has other parameters
#define _mm512_madd_epi16(a, b) emulated_madd_epi16(a, b)
#undef _mm512_dpbusd_epi32
#define _mm512_dpbusd_epi32(sum, w, x) emulated_dpbusd_epi32(sum, w, x)
#undef _mm512_dpwssd_epi32
#define _mm512_dpwssd_epi32(sum, a, b) emulated_dpwssd_epi32(sum, a, b)
#define _mm512_stream_ps(p, v) emulated_stream_ps(p, v)
#define _mm512_mask_storeu_ps(p, mask, v) emulated_mask_storeu_ps(p, mask, v)
#define _mm512_maskz_loadu_ps(mask, p) emulated_maskz_loadu_ps(mask, p)

#endif
