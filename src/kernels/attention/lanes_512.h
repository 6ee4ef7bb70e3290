#pragma once
// lanes_256.h with sixteen f32 or int32 in a register.

#include "kernels/attention/arithmetic.h"
#include "kernels/attention/unrolled.h"
#include "kernels/intrin512.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct Lanes512 {
  static constexpr int kLanes = 16;
  static constexpr int kKeyChunks = 4;  // of 16 positions, scored together: what leaves no register over
  using F = __m512;
  using I = __m512i;
  using Mask = __mmask16;  // ones for the lanes that count

  static TALLY_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  static TALLY_INLINE void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static TALLY_INLINE F set(float v) { return _mm512_set1_ps(v); }
  static TALLY_INLINE F zero() { return _mm512_setzero_ps(); }
  static TALLY_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  static TALLY_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static TALLY_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static TALLY_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
  static TALLY_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static TALLY_INLINE F max(F a, F b) { return _mm512_max_ps(a, b); }
  static TALLY_INLINE F magnitude(F a) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7FFFFFFF)));
  }
  static TALLY_INLINE F with_sign_of(F a, F sign) {
    const I bit = _mm512_set1_epi32(static_cast<int>(0x80000000u));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_andnot_si512(bit, _mm512_castps_si512(a)),
                                               _mm512_and_si512(bit, _mm512_castps_si512(sign))));
  }
  // a * 2^n, t = n + kRoundMagic.
  static TALLY_INLINE F add_exponent(F a, F t) {
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(a), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
  }

  static TALLY_INLINE I load_i(const void* p) { return _mm512_loadu_si512(p); }
  static TALLY_INLINE void store_i(void* p, I v) { _mm512_storeu_si512(p, v); }
#ifndef TALLY_EMULATE
  // Keeps an accumulator of a loop in one register: gcc 12 copies or spills it otherwise.
  static TALLY_INLINE void pin(I& v) { asm("" : "+v"(v)); }
  static TALLY_INLINE void pin(F& v) { asm("" : "+v"(v)); }
#else
  static TALLY_INLINE void pin(I&) {}
  static TALLY_INLINE void pin(F&) {}
#endif
  static TALLY_INLINE I set_i(int32_t v) { return _mm512_set1_epi32(v); }
  static TALLY_INLINE I broadcast(const void* four) {
    int32_t v;
    __builtin_memcpy(&v, four, sizeof v);
    return _mm512_set1_epi32(v);
  }
  static TALLY_INLINE I ascending(int32_t from) {
    return _mm512_add_epi32(_mm512_set1_epi32(from),
                            _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0));
  }
  static TALLY_INLINE F to_float(I v) { return _mm512_cvtepi32_ps(v); }
  static TALLY_INLINE I rounded(F v) { return _mm512_cvtps_epi32(v); }  // to nearest even
  static TALLY_INLINE I add_i(I a, I b) { return _mm512_add_epi32(a, b); }
  template <int N>
  static TALLY_INLINE I shl_i(I a) {
    return _mm512_slli_epi32(a, N);
  }

  // 16-bit halves of the lanes.
  static TALLY_INLINE I even_u8(I v) { return _mm512_and_si512(v, _mm512_set1_epi32(0x00FF00FF)); }
  static TALLY_INLINE I odd_u8(I v) { return _mm512_srli_epi16(v, 8); }
  static TALLY_INLINE I even_s8(I v) { return _mm512_srai_epi16(_mm512_slli_epi16(v, 8), 8); }
  static TALLY_INLINE I odd_s8(I v) { return _mm512_srai_epi16(v, 8); }
  static TALLY_INLINE I madd(I a, I b) { return _mm512_madd_epi16(a, b); }

  // Nibbles: the N-th of each 16 bits, and those of each byte.
  template <int N>
  static TALLY_INLINE I nibble16(I v) {
    if constexpr (N == 3) return _mm512_srli_epi16(v, 12);
    return _mm512_and_si512(_mm512_srli_epi16(v, 4 * N), _mm512_set1_epi32(0x000F000F));
  }
  static TALLY_INLINE I low_nibbles(I v) { return _mm512_and_si512(v, _mm512_set1_epi32(0x0F0F0F0F)); }
  static TALLY_INLINE I high_nibbles(I v) { return low_nibbles(_mm512_srli_epi16(v, 4)); }
  static TALLY_INLINE I maddubs(I u, I s) { return _mm512_maddubs_epi16(u, s); }
  static TALLY_INLINE I add_16(I a, I b) { return _mm512_add_epi16(a, b); }
  static TALLY_INLINE I set_16(int16_t v) { return _mm512_set1_epi32(v | v << 16); }

  // 32-bit lanes to 16 bits, a's and b's by turns of 128 bits; of two such the bytes, stored in order.
  static TALLY_INLINE I pack_words(I a, I b) { return _mm512_packs_epi32(a, b); }
  static TALLY_INLINE void put_bytes(uint8_t* to, I a, I b) {
    const I order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(a, b)));
  }
  template <int N>
  static TALLY_INLINE I shr_16(I a) {
    return _mm512_srli_epi16(a, N);
  }
  static TALLY_INLINE I and_i(I a, I b) { return _mm512_and_si512(a, b); }

  // The bf16 in the low and in the high half of each lane.
  static TALLY_INLINE F low_bf16(I v) { return _mm512_castsi512_ps(_mm512_slli_epi32(v, 16)); }
  static TALLY_INLINE F high_bf16(I v) {
    return _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }

  // Lanes first + i of which begin <= first + i < end.
  static TALLY_INLINE Mask within(int begin, int end, int first) {
    const auto below = [first](int limit) {  // lanes under the limit
      const int n = limit - first;
      return n <= 0 ? 0u : n >= kLanes ? 0xFFFFu : (1u << n) - 1u;
    };
    return static_cast<Mask>(below(end) & ~below(begin));
  }
  static TALLY_INLINE F select(Mask m, F yes, F no) { return _mm512_mask_blend_ps(m, no, yes); }
  static TALLY_INLINE F keep(Mask m, F v) { return _mm512_maskz_mov_ps(m, v); }  // 0 elsewhere

  // The first steps of reductions over lanes: lane i of the result is of lanes i, i + 8, ...
  static TALLY_INLINE __m256 low(F v) { return _mm512_castps512_ps256(v); }
  static TALLY_INLINE __m256 high(F v) {
    return _mm256_castsi256_ps(_mm512_extracti64x4_epi64(_mm512_castps_si512(v), 1));
  }
  static TALLY_INLINE __m256 fold_max(F v) { return _mm256_max_ps(low(v), high(v)); }
  // tree_sum of 64 values in registers of kLanes, up to 8 partials.
  static TALLY_INLINE __m256 fold_sum(const F* e) {
    const F part = add(add(e[0], e[1]), add(e[2], e[3]));
    return _mm256_add_ps(low(part), high(part));
  }
  // 16 partials to 8.
  static TALLY_INLINE __m256 fold_16(const F* part) { return _mm256_add_ps(low(part[0]), high(part[0])); }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
