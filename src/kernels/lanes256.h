#pragma once
// Eight rows in the 32-bit lanes of a 256-bit register, as the loops that serve several tiers see them
// (block32/tile.h, ...). `Lanes` of lanes512.h has the same members with sixteen rows; a file includes one
// of the two. Internal linkage: see panel.h.
//
// A dot of four unsigned codes and four signed activations a lane has two forms, and the file that includes
// this says which: TALLY_LANES_VNNI defined: vpdpbusd, exact for any codes; else vpmaddubsw and vpmaddwd, for
// codes whose pair sums fit 16 bits.

#include "kernels/intrin_vnni.h"

#include <cstddef>
#include <cstdint>

#define TALLY_INLINE __attribute__((always_inline))

namespace TALLY_KERNELS_TIER {
namespace {

struct Lanes {
  static constexpr size_t kRows = 8;
  using I = __m256i;
  using F = __m256;

  static TALLY_INLINE I load(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
  // The first `count` 32-bit lanes, the others zero.
  static TALLY_INLINE I load_first(const void* p, size_t count) {
    return _mm256_maskload_epi32(static_cast<const int*>(p), first_lanes(count));
  }
  static TALLY_INLINE void store32(void* p, I v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }
  // 16 bytes, the same in every 128-bit part: a table for shuffle.
  static TALLY_INLINE I load_table(const void* p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  static TALLY_INLINE F load_f(const float* p) { return _mm256_loadu_ps(p); }
  // kRows f16 as f32.
  static TALLY_INLINE F load_f16(const void* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  // kRows bytes, each twice, widened to the two 16-bit halves of its row's lane.
  static TALLY_INLINE I load_u8_pairs(const void* p) {
    const __m128i v = _mm_loadl_epi64(static_cast<const __m128i*>(p));
    return _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(v, v));
  }
  // kRows bytes of each of two arrays: a's in the low half of the lane, b's in the high half, signed.
  static TALLY_INLINE I load_s8_pair(const void* a, const void* b) {
    return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(_mm_loadl_epi64(static_cast<const __m128i*>(a)),
                                                  _mm_loadl_epi64(static_cast<const __m128i*>(b))));
  }
  static TALLY_INLINE I load_u8(const void* p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  }
  static TALLY_INLINE I load_s8(const void* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(static_cast<const __m128i*>(p)));
  }
  // kRows int16 as int32.
  static TALLY_INLINE I load_s16(const void* p) {
    return _mm256_cvtepi16_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)));
  }
  // Four int8, or a pair of int16, in every lane.
  static TALLY_INLINE I broadcast4(const void* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return _mm256_set1_epi32(four);
  }
  static TALLY_INLINE I zero() { return _mm256_setzero_si256(); }
  static TALLY_INLINE I set8(int v) { return _mm256_set1_epi8(static_cast<char>(v)); }
  static TALLY_INLINE I set16(int v) { return _mm256_set1_epi16(static_cast<int16_t>(v)); }
  static TALLY_INLINE I set32(int32_t v) { return _mm256_set1_epi32(v); }
  static TALLY_INLINE I bit_and(I a, I b) { return _mm256_and_si256(a, b); }
  static TALLY_INLINE I bit_or(I a, I b) { return _mm256_or_si256(a, b); }
  template <int N>
  static TALLY_INLINE I shl16(I a) {
    return _mm256_slli_epi16(a, N);
  }
  template <int N>
  static TALLY_INLINE I shr16(I a) {
    return _mm256_srli_epi16(a, N);
  }
  template <int N>
  static TALLY_INLINE I shl32(I a) {
    return _mm256_slli_epi32(a, N);
  }
  static TALLY_INLINE I add8(I a, I b) { return _mm256_add_epi8(a, b); }
  static TALLY_INLINE I add16(I a, I b) { return _mm256_add_epi16(a, b); }
  static TALLY_INLINE I add32(I a, I b) { return _mm256_add_epi32(a, b); }
  static TALLY_INLINE I sub16(I a, I b) { return _mm256_sub_epi16(a, b); }
  static TALLY_INLINE I sub32(I a, I b) { return _mm256_sub_epi32(a, b); }
  static TALLY_INLINE I mul32(I a, I b) { return _mm256_mullo_epi32(a, b); }
  static TALLY_INLINE I max32(I a, I b) { return _mm256_max_epi32(a, b); }
  static TALLY_INLINE I shuffle8(I table, I index) { return _mm256_shuffle_epi8(table, index); }
  static TALLY_INLINE I maddubs(I u, I s) { return _mm256_maddubs_epi16(u, s); }
  static TALLY_INLINE I madd16(I a, I b) { return _mm256_madd_epi16(a, b); }
  static TALLY_INLINE F to_float(I a) { return _mm256_cvtepi32_ps(a); }
  static TALLY_INLINE F as_float(I a) { return _mm256_castsi256_ps(a); }  // the bits
  static TALLY_INLINE F zero_f() { return _mm256_setzero_ps(); }
  static TALLY_INLINE F set_f(float v) { return _mm256_set1_ps(v); }
  static TALLY_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static TALLY_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static TALLY_INLINE F fnma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a * b
  // Writes the first `count` lanes.
  static TALLY_INLINE void store(float* p, F v, size_t count) {
    if (count >= kRows) return _mm256_storeu_ps(p, v);
    _mm256_maskstore_ps(p, first_lanes(count), v);
  }
  static TALLY_INLINE I first_lanes(size_t count) {
    const I lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
  }
  // The same, past the caches where all lanes are written. Requires with `stream`: p is aligned to a
  // register.
  static TALLY_INLINE void write(float* p, F v, size_t count, bool stream) {
    if (stream && count >= kRows) return _mm256_stream_ps(p, v);
    store(p, v, count);
  }
#ifdef TALLY_LANES_VNNI
  static constexpr bool kVnni = true;
  static TALLY_INLINE I dpbusd(I sum, I u, I s) { return dpbusd_256(sum, u, s); }
  static TALLY_INLINE I dot_pairs(I sum, I a, I b) {
#ifdef TALLY_EMULATE
    return add32(sum, madd16(a, b));
#else
    return _mm256_dpwssd_avx_epi32(sum, a, b);
#endif
  }
#else
  static constexpr bool kVnni = false;
  static TALLY_INLINE I dot_pairs(I sum, I a, I b) { return add32(sum, madd16(a, b)); }
#endif
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
