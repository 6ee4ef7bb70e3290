#pragma once
// Eight f32 or int32 in a register, as the steps that serve several tiers see them (micro_tile.h, int8_*.h,
// float_rows.h). Lanes512 of lanes_512.h has the same members with sixteen.

#include "kernels/attention/arithmetic.h"
#include "kernels/attention/unrolled.h"

#include <immintrin.h>

namespace tally::kernels::attention {
namespace {

struct Lanes256 {
  static constexpr int kLanes = 8;
  static constexpr int kKeyChunks = 1;  // of 16 positions, scored together: what leaves no register over
  using F = __m256;
  using I = __m256i;
  using Mask = __m256;  // all ones in the lanes that count

  static TALLY_INLINE F load(const float* p) { return _mm256_loadu_ps(p); }
  static TALLY_INLINE void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static TALLY_INLINE F set(float v) { return _mm256_set1_ps(v); }
  static TALLY_INLINE F zero() { return _mm256_setzero_ps(); }
  static TALLY_INLINE F add(F a, F b) { return _mm256_add_ps(a, b); }
  static TALLY_INLINE F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static TALLY_INLINE F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static TALLY_INLINE F div(F a, F b) { return _mm256_div_ps(a, b); }
  static TALLY_INLINE F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static TALLY_INLINE F max(F a, F b) { return _mm256_max_ps(a, b); }
  static TALLY_INLINE F magnitude(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.f), a); }
  static TALLY_INLINE F with_sign_of(F a, F sign) {
    const F bit = _mm256_set1_ps(-0.f);
    return _mm256_or_ps(_mm256_andnot_ps(bit, a), _mm256_and_ps(bit, sign));
  }
  // a * 2^n, t = n + kRoundMagic.
  static TALLY_INLINE F add_exponent(F a, F t) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(a), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
  }

  static TALLY_INLINE I load_i(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }
  static TALLY_INLINE void store_i(void* p, I v) { _mm256_store_si256(static_cast<__m256i*>(p), v); }
  // Keeps an accumulator of a loop in one register: gcc 12 copies or spills it otherwise.
  static TALLY_INLINE void pin(I& v) { asm("" : "+x"(v)); }
  static TALLY_INLINE void pin(F& v) { asm("" : "+x"(v)); }
  static TALLY_INLINE I set_i(int32_t v) { return _mm256_set1_epi32(v); }
  static TALLY_INLINE I broadcast(const void* four) {
    int32_t v;
    __builtin_memcpy(&v, four, sizeof v);
    return _mm256_set1_epi32(v);
  }
  static TALLY_INLINE I ascending(int32_t from) {
    return _mm256_add_epi32(_mm256_set1_epi32(from), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static TALLY_INLINE F to_float(I v) { return _mm256_cvtepi32_ps(v); }
  static TALLY_INLINE I rounded(F v) { return _mm256_cvtps_epi32(v); }  // to nearest even
  static TALLY_INLINE I add_i(I a, I b) { return _mm256_add_epi32(a, b); }
  template <int N>
  static TALLY_INLINE I shl_i(I a) {
    return _mm256_slli_epi32(a, N);
  }

  // 16-bit halves of the lanes.
  static TALLY_INLINE I even_u8(I v) { return _mm256_and_si256(v, _mm256_set1_epi16(0xFF)); }
  static TALLY_INLINE I odd_u8(I v) { return _mm256_srli_epi16(v, 8); }
  static TALLY_INLINE I even_s8(I v) { return _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8); }
  static TALLY_INLINE I odd_s8(I v) { return _mm256_srai_epi16(v, 8); }
  static TALLY_INLINE I madd(I a, I b) { return _mm256_madd_epi16(a, b); }

  // Nibbles: the N-th of each 16 bits, and those of each byte.
  template <int N>
  static TALLY_INLINE I nibble16(I v) {
    if constexpr (N == 3) return _mm256_srli_epi16(v, 12);
    return _mm256_and_si256(_mm256_srli_epi16(v, 4 * N), _mm256_set1_epi16(0xF));
  }
  static TALLY_INLINE I low_nibbles(I v) { return _mm256_and_si256(v, _mm256_set1_epi8(0xF)); }
  static TALLY_INLINE I high_nibbles(I v) { return low_nibbles(_mm256_srli_epi16(v, 4)); }
  static TALLY_INLINE I maddubs(I u, I s) { return _mm256_maddubs_epi16(u, s); }
  static TALLY_INLINE I add_16(I a, I b) { return _mm256_add_epi16(a, b); }
  static TALLY_INLINE I set_16(int16_t v) { return _mm256_set1_epi16(v); }

  // 32-bit lanes to 16 bits, a's and b's by turns of 128 bits; of two such the bytes, stored in order.
  static TALLY_INLINE I pack_words(I a, I b) { return _mm256_packs_epi32(a, b); }
  static TALLY_INLINE void put_bytes(uint8_t* to, I a, I b) {
    const I order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const I bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(a, b), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), bytes);
  }
  template <int N>
  static TALLY_INLINE I shr_16(I a) {
    return _mm256_srli_epi16(a, N);
  }
  static TALLY_INLINE I and_i(I a, I b) { return _mm256_and_si256(a, b); }

  // The bf16 in the low and in the high half of each lane.
  static TALLY_INLINE F low_bf16(I v) { return _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)); }
  static TALLY_INLINE F high_bf16(I v) {
    return _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
  }

  // Lanes first + i of which begin <= first + i < end.
  static TALLY_INLINE Mask within(int begin, int end, int first) {
    const __m256i at = ascending(first);
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), at),
                                                   _mm256_cmpgt_epi32(_mm256_set1_epi32(end), at)));
  }
  static TALLY_INLINE F select(Mask m, F yes, F no) { return _mm256_blendv_ps(no, yes, m); }
  static TALLY_INLINE F keep(Mask m, F v) { return _mm256_and_ps(v, m); }  // 0 elsewhere

  // The first steps of reductions over lanes: lane i of the result is of lanes i, i + 8, ...
  static TALLY_INLINE __m256 fold_max(F v) { return v; }
  // tree_sum of 64 values in registers of kLanes, up to 8 partials.
  static TALLY_INLINE __m256 fold_sum(const F* e) {
    return add(add(add(e[0], e[2]), add(e[4], e[6])), add(add(e[1], e[3]), add(e[5], e[7])));
  }
  // 16 partials to 8.
  static TALLY_INLINE __m256 fold_16(const F* part) { return add(part[0], part[1]); }
};

// Lane i: of the 8 lanes of the i-th register, in the order of tree_sum.
template <class Op>
inline TALLY_INLINE __m128 fold_four(__m256 a, __m256 b, __m256 c, __m256 d, Op op) {
  const __m256 ac = op(_mm256_permute2f128_ps(a, c, 0x20), _mm256_permute2f128_ps(a, c, 0x31));
  const __m256 bd = op(_mm256_permute2f128_ps(b, d, 0x20), _mm256_permute2f128_ps(b, d, 0x31));
  const __m256 twos = op(_mm256_shuffle_ps(ac, bd, 0x44), _mm256_shuffle_ps(ac, bd, 0xEE));
  const __m256 ones = op(twos, _mm256_movehdup_ps(twos));  // a . b . | c . d .
  return _mm_shuffle_ps(_mm256_castps256_ps128(ones), _mm256_extractf128_ps(ones, 1), 0x88);
}

inline TALLY_INLINE float max_of_lanes(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  m = _mm_max_ss(m, _mm_movehdup_ps(m));
  return _mm_cvtss_f32(m);
}

inline TALLY_INLINE bool all_finite_lanes(const float* x, size_t columns) {
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  __m256i bad = _mm256_setzero_si256();
  for (size_t i = 0; i < columns; i += 8) {
    const __m256i bits = _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), exponent);
    bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(bits, exponent));
  }
  return _mm256_testz_si256(bad, bad) != 0;
}

inline TALLY_INLINE void prefetch(const std::byte* line) {
  _mm_prefetch(reinterpret_cast<const char*>(line), _MM_HINT_T0);
}

}  // namespace
}  // namespace tally::kernels::attention
