#pragma once
// The AVX-512 intrinsics, native or emulated. Files named avx512vnni.cc include this instead of <immintrin.h>
// and put their code in `namespace TALLY_KERNELS_512`. kernels.cmake compiles them a second time with
// TALLY_EMULATE_AVX512 (SIMDe, AVX2 flags), so that the tests compare them with the scalar definition bit for
// bit on hosts without AVX-512.
//
// SIMDe 0.7 lacks some intrinsics; the section below has those our kernels use, as two AVX2 halves each.

#ifndef TALLY_EMULATE_AVX512

#include <immintrin.h>
#define TALLY_KERNELS_512 tally::kernels

#else

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <immintrin.h>
#include <simde/x86/avx512.h>
#ifdef TALLY_AVX512_IS_EMULATED  // the whole program of a build for tests: this is its AVX-512 tier
#define TALLY_KERNELS_512 tally::kernels
#else
#define TALLY_KERNELS_512 tally::kernels::emulated
#endif

namespace TALLY_KERNELS_512 {
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
}  // namespace TALLY_KERNELS_512

#define _mm512_cvtph_ps(v) emulated_cvtph_ps(v)
#define _mm512_cvtepi32_ps(v) emulated_cvtepi32_ps(v)
#define _mm512_cvtps_epi32(v) emulated_cvtps_epi32(v)
#define _mm512_cvttps_epi32(v) emulated_cvttps_epi32(v)
#define _mm512_cvtepu8_epi32(v) emulated_cvtepu8_epi32(v)
#define _mm512_cvtepi8_epi32(v) emulated_cvtepi8_epi32(v)
#define _mm512_cvtepi16_epi32(v) emulated_cvtepi16_epi32(v)
#define _mm512_cvtepu16_epi32(v) emulated_cvtepu16_epi32(v)
#define _mm512_cvtepu8_epi16(v) emulated_cvtepu8_epi16(v)
#define _mm512_mask_storeu_ps(p, mask, v) emulated_mask_storeu_ps(p, mask, v)
#define _mm512_maskz_loadu_ps(mask, p) emulated_maskz_loadu_ps(mask, p)

#endif
