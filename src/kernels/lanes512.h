#pragma once
// lanes256.h with sixteen rows in the 32-bit lanes of a 512-bit register.

#include "kernels/intrin512.h"

#include <cstddef>
#include <cstdint>

#define TALLY_INLINE __attribute__((always_inline))

namespace TALLY_KERNELS_TIER {
namespace {

struct Lanes {
  static constexpr size_t kRows = 16;
  using I = __m512i;
  using F = __m512;

  static TALLY_INLINE I load(const void* p) { return _mm512_loadu_si512(p); }
  // The first `count` 32-bit lanes, the others zero.
  static TALLY_INLINE I load_first(const void* p, size_t count) {
    return _mm512_castps_si512(_mm512_maskz_loadu_ps(first_lanes(count), p));
  }
  static TALLY_INLINE void store32(void* p, I v) { _mm512_storeu_si512(p, v); }
  // 16 bytes, the same in every 128-bit part: a table for shuffle.
  static TALLY_INLINE I load_table(const void* p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static TALLY_INLINE F load_f(const float* p) { return _mm512_loadu_ps(p); }
  // kRows f16 as f32.
  static TALLY_INLINE F load_f16(const void* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  // kRows bytes, each twice, widened to the two 16-bit halves of its row's lane.
  static TALLY_INLINE I load_u8_pairs(const void* p) {
    const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
    return _mm512_or_si512(wide, _mm512_slli_epi32(wide, 16));
  }
  // kRows bytes of each of two arrays: a's in the low half of the lane, b's in the high half, signed.
  static TALLY_INLINE I load_s8_pair(const void* a, const void* b) {
    const __m512i low = _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(a)));
    const __m512i high = _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(b)));
    return _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi32(0xFFFF)), _mm512_slli_epi32(high, 16));
  }
  static TALLY_INLINE I load_u8(const void* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static TALLY_INLINE I load_s8(const void* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  // kRows int16 as int32.
  static TALLY_INLINE I load_s16(const void* p) {
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)));
  }
  // Four int8, or a pair of int16, in every lane.
  static TALLY_INLINE I broadcast4(const void* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return _mm512_set1_epi32(four);
  }
  static TALLY_INLINE I zero() { return _mm512_setzero_si512(); }
  static TALLY_INLINE I set8(int v) { return _mm512_set1_epi8(static_cast<char>(v)); }
  static TALLY_INLINE I set16(int v) { return _mm512_set1_epi16(static_cast<int16_t>(v)); }
  static TALLY_INLINE I set32(int32_t v) { return _mm512_set1_epi32(v); }
  static TALLY_INLINE I bit_and(I a, I b) { return _mm512_and_si512(a, b); }
  static TALLY_INLINE I bit_or(I a, I b) { return _mm512_or_si512(a, b); }
  template <int N>
  static TALLY_INLINE I shl16(I a) {
    return _mm512_slli_epi16(a, N);
  }
  template <int N>
  static TALLY_INLINE I shr16(I a) {
    return _mm512_srli_epi16(a, N);
  }
  template <int N>
  static TALLY_INLINE I shl32(I a) {
    return _mm512_slli_epi32(a, N);
  }
  static TALLY_INLINE I add8(I a, I b) { return _mm512_add_epi8(a, b); }
  static TALLY_INLINE I add16(I a, I b) { return _mm512_add_epi16(a, b); }
  static TALLY_INLINE I add32(I a, I b) { return _mm512_add_epi32(a, b); }
  static TALLY_INLINE I sub16(I a, I b) { return _mm512_sub_epi16(a, b); }
  static TALLY_INLINE I sub32(I a, I b) { return _mm512_sub_epi32(a, b); }
  static TALLY_INLINE I mul32(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static TALLY_INLINE I max32(I a, I b) { return _mm512_max_epi32(a, b); }
  static TALLY_INLINE I shuffle8(I table, I index) { return _mm512_shuffle_epi8(table, index); }
  static TALLY_INLINE I maddubs(I u, I s) { return _mm512_maddubs_epi16(u, s); }
  static TALLY_INLINE I madd16(I a, I b) { return _mm512_madd_epi16(a, b); }
  static TALLY_INLINE F to_float(I a) { return _mm512_cvtepi32_ps(a); }
  static TALLY_INLINE F as_float(I a) { return _mm512_castsi512_ps(a); }  // the bits
  static TALLY_INLINE F zero_f() { return _mm512_setzero_ps(); }
  static TALLY_INLINE F set_f(float v) { return _mm512_set1_ps(v); }
  static TALLY_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static TALLY_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static TALLY_INLINE F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
  // Writes the first `count` lanes.
  static TALLY_INLINE void store(float* p, F v, size_t count) {
    _mm512_mask_storeu_ps(p, first_lanes(count), v);
  }
  static TALLY_INLINE __mmask16 first_lanes(size_t count) {
    return static_cast<__mmask16>(count >= kRows ? 0xFFFFu : (1u << count) - 1u);
  }
  // The same, past the caches where all lanes are written. Requires with `stream`: p is aligned to a
  // register.
  static TALLY_INLINE void write(float* p, F v, size_t count, bool stream) {
    if (stream && count >= kRows) return _mm512_stream_ps(p, v);
    store(p, v, count);
  }
#ifdef TALLY_LANES_VNNI
  static constexpr bool kVnni = true;
  static TALLY_INLINE I dpbusd(I sum, I u, I s) { return _mm512_dpbusd_epi32(sum, u, s); }
  static TALLY_INLINE I dot_pairs(I sum, I a, I b) { return _mm512_dpwssd_epi32(sum, a, b); }
#else
  static constexpr bool kVnni = false;
  static TALLY_INLINE I dot_pairs(I sum, I a, I b) { return add32(sum, madd16(a, b)); }
#endif
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
