#pragma once
// The f32 steps of arithmetic.h on 8 lanes, in the same order of operations: equal bits. For files compiled
// with AVX2 or more.

#include "kernels/attention/arithmetic.h"
#include "kernels/attention/tile.h"

#include <immintrin.h>

#include <utility>

#define TALLY_INLINE inline __attribute__((always_inline))

namespace tally::kernels::attention {
namespace {

// f(I) for I = 0 .. N-1, I a constant: arrays indexed by it become registers (gcc 12 spills them in plain
// loops).
template <int N, class F>
TALLY_INLINE void unrolled(F f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

TALLY_INLINE __m256 exp2_lanes(__m256 x) {
  x = _mm256_max_ps(x, _mm256_set1_ps(kExponentMin));
  const __m256 t = _mm256_add_ps(x, _mm256_set1_ps(kRoundMagic));
  const __m256 f = _mm256_sub_ps(x, _mm256_sub_ps(t, _mm256_set1_ps(kRoundMagic)));
  __m256 p = _mm256_set1_ps(kExp2C5);
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(kExp2C4));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(kExp2C3));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(kExp2C2));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(kExp2C1));
  p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.f));
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}

TALLY_INLINE __m256 softcap_lanes(__m256 s, const Softcap& cap) {
  const __m256 sign = _mm256_set1_ps(-0.f), one = _mm256_set1_ps(1.f);
  const __m256 t = exp2_lanes(_mm256_mul_ps(_mm256_andnot_ps(sign, s), _mm256_set1_ps(cap.slope)));
  const __m256 r =
      _mm256_mul_ps(_mm256_set1_ps(cap.limit), _mm256_div_ps(_mm256_sub_ps(one, t), _mm256_add_ps(one, t)));
  return _mm256_or_ps(_mm256_andnot_ps(sign, r), _mm256_and_ps(sign, s));
}

TALLY_INLINE float max_of_lanes(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  m = _mm_max_ss(m, _mm_movehdup_ps(m));
  return _mm_cvtss_f32(m);
}

// tree_sum of 64 values, e[i] = lane i % 8 of vector i / 8.
TALLY_INLINE float tree_sum_lanes(const __m256* e) {
  const __m256 low = _mm256_add_ps(_mm256_add_ps(e[0], e[2]), _mm256_add_ps(e[4], e[6]));
  const __m256 high = _mm256_add_ps(_mm256_add_ps(e[1], e[3]), _mm256_add_ps(e[5], e[7]));
  const __m256 s8 = _mm256_add_ps(low, high);
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  s = _mm_add_ss(s, _mm_movehdup_ps(s));
  return _mm_cvtss_f32(s);
}

// All ones in the lanes of vector i whose position a row sees.
TALLY_INLINE __m256 visible_lanes(const Visible& seen, int i) {
  const __m256i at = _mm256_add_epi32(_mm256_set1_epi32(8 * i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  return _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(at, _mm256_set1_epi32(seen.begin - 1)),
                                              _mm256_cmpgt_epi32(_mm256_set1_epi32(seen.end), at)));
}

// A micro tile: 1 to 4 rows that meet a group together.
constexpr int kMicroRows = 4;
struct alignas(64) Micro {
  float s[kMicroRows][kGroupTokens];  // dot products (int32 bits for int8), then scores, exponents or weights
  float group_max[kMicroRows], group_sum[kMicroRows], weight_max[kMicroRows];
  float keep[kMicroRows];  // cr
  float add[kMicroRows];   // cg
  Visible seen[kMicroRows];
  float slope[kMicroRows];       // of ALiBi, to base 2; set, like `distance`, only if there is one
  int32_t distance[kMicroRows];  // first position of the group - position of the row
};

// Notes what T rows see of a group; true if each sees all of it.
template <int T>
TALLY_INLINE bool see_group(const Tile& tile, const GroupView& g, size_t row, Micro& m) {
  bool full = true;
  for (int t = 0; t < T; ++t) {
    m.seen[t] = visible_in(tile, row + static_cast<size_t>(t), g.position);
    full = full && m.seen[t].begin == 0 && m.seen[t].end == static_cast<int>(kGroupTokens);
  }
  if (tile.args->alibi != nullptr)
    for (int t = 0; t < T; ++t) {
      const size_t at = row + static_cast<size_t>(t);
      m.slope[t] = alibi_slope(tile.args->alibi[at % tile.args->group]);
      m.distance[t] = static_cast<int32_t>(g.position) - static_cast<int32_t>(tile.row_position(at));
    }
  return full;
}

// Adds slope * distance to 64 scores.
TALLY_INLINE void add_distances(const Micro& m, int t, __m256* s) {
  const __m256 slope = _mm256_set1_ps(m.slope[t]);
  unrolled<8>([&](auto i) __attribute__((always_inline)) {
    const __m256i at =
        _mm256_add_epi32(_mm256_set1_epi32(m.distance[t] + 8 * i), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    s[i] = _mm256_fmadd_ps(slope, _mm256_cvtepi32_ps(at), s[i]);
  });
}

// Caps, biases by distance and masks the 64 scores of a row, stores them and their max.
template <bool Masked>
TALLY_INLINE void finish_scores(const Tile& tile, Micro& m, int t, __m256* s) {
  if (tile.cap.limit != 0)
    unrolled<8>([&](auto i) __attribute__((always_inline)) { s[i] = softcap_lanes(s[i], tile.cap); });
  if (tile.args->alibi != nullptr) add_distances(m, t, s);
  if constexpr (Masked)
    unrolled<8>([&](auto i) __attribute__((always_inline)) {
      s[i] = _mm256_blendv_ps(_mm256_set1_ps(kNoScore), s[i], visible_lanes(m.seen[t], i));
    });
  unrolled<8>([&](auto i) __attribute__((always_inline)) { _mm256_store_ps(m.s[t] + 8 * i, s[i]); });
  m.group_max[t] =
      max_of_lanes(_mm256_max_ps(_mm256_max_ps(_mm256_max_ps(s[0], s[1]), _mm256_max_ps(s[2], s[3])),
                                 _mm256_max_ps(_mm256_max_ps(s[4], s[5]), _mm256_max_ps(s[6], s[7]))));
}

// e = 2^(s - mg), zero where a row does not see; stores their sum.
template <bool Masked>
TALLY_INLINE void exponents(Micro& m, int t, __m256* e) {
  const __m256 max = _mm256_set1_ps(m.group_max[t]);
  unrolled<8>([&](auto i) __attribute__((always_inline)) {
    e[i] = exp2_lanes(_mm256_sub_ps(_mm256_load_ps(m.s[t] + 8 * i), max));
    if constexpr (Masked) e[i] = _mm256_and_ps(e[i], visible_lanes(m.seen[t], i));
  });
  m.group_sum[t] = tree_sum_lanes(e);
}

// Joins the group to the span's max and sum: makes keep (cr) and add (cg).
template <int T>
TALLY_INLINE void join_group(const Tile& tile, size_t row, Micro& m) {
  const TileMemory& mem = tile.memory;
  alignas(32) float below[8] = {};
  for (int t = 0; t < T; ++t) {
    const float old = mem.span_max[row + static_cast<size_t>(t)];
    const float max = m.group_max[t] > old ? m.group_max[t] : old;
    below[t] = old - max;
    below[4 + t] = m.group_max[t] - max;
    mem.span_max[row + static_cast<size_t>(t)] = max;
  }
  const __m256 c = exp2_lanes(_mm256_load_ps(below));
  _mm_storeu_ps(m.keep, _mm256_castps256_ps128(c));
  _mm_storeu_ps(m.add, _mm256_extractf128_ps(c, 1));
  for (int t = 0; t < T; ++t) {
    float& sum = mem.span_sum[row + static_cast<size_t>(t)];
    sum = __builtin_fmaf(sum, m.keep[t], m.group_sum[t] * m.add[t]);
  }
}

TALLY_INLINE bool all_finite_lanes(const float* x, size_t columns) {
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  __m256i bad = _mm256_setzero_si256();
  for (size_t i = 0; i < columns; i += 8) {
    const __m256i bits = _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), exponent);
    bad = _mm256_or_si256(bad, _mm256_cmpeq_epi32(bits, exponent));
  }
  return _mm256_testz_si256(bad, bad) != 0;
}

TALLY_INLINE void prefetch(const std::byte* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(from + i), _MM_HINT_T0);
}

}  // namespace
}  // namespace tally::kernels::attention
