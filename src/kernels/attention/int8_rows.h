#pragma once
// What the int8 forms share: rotation and quantization of queries, and the softmax between the two integer
// products. The forms differ in the products, and so in how they lay out q and p.

#include "kernels/attention/micro_tile.h"

namespace tally::kernels::attention {
namespace {

// rotate() on a head padded with zeros to a multiple of 16 columns.
inline TALLY_INLINE void rotate_lanes(float* x, size_t d, size_t columns) {
  const size_t block = rotation_block(d);
  for (size_t i = 0; i < columns; i += 8) {
    __m256 v = _mm256_loadu_ps(x + i);
    if (block > 1) {
      const __m256 o = _mm256_permute_ps(v, 0xB1);
      v = _mm256_blend_ps(_mm256_add_ps(v, o), _mm256_sub_ps(o, v), 0xAA);
    }
    if (block > 2) {
      const __m256 o = _mm256_permute_ps(v, 0x4E);
      v = _mm256_blend_ps(_mm256_add_ps(v, o), _mm256_sub_ps(o, v), 0xCC);
    }
    if (block > 4) {
      const __m256 o = _mm256_permute2f128_ps(v, v, 0x01);
      v = _mm256_blend_ps(_mm256_add_ps(v, o), _mm256_sub_ps(o, v), 0xF0);
    }
    _mm256_storeu_ps(x + i, v);
  }
  if (block > 8)
    for (size_t h = 8; h < block; h *= 2)
      for (size_t base = 0; base < d; base += 2 * h)
        for (size_t j = base; j < base + h; j += 8) {
          const __m256 a = _mm256_loadu_ps(x + j), b = _mm256_loadu_ps(x + j + h);
          _mm256_storeu_ps(x + j, _mm256_add_ps(a, b));
          _mm256_storeu_ps(x + j + h, _mm256_sub_ps(a, b));
        }
  const __m256 factor = _mm256_set1_ps(rotation_factor(block));
  for (size_t i = 0; i < columns; i += 8)
    _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_loadu_ps(x + i), factor));
}

// quantize_127() of padded columns; q [columns].
inline TALLY_INLINE float quantize_lanes(const float* x, size_t columns, int8_t* q) {
  const __m256 sign = _mm256_set1_ps(-0.f);
  __m256 m = _mm256_setzero_ps();
  for (size_t i = 0; i < columns; i += 8)
    m = _mm256_max_ps(_mm256_andnot_ps(sign, _mm256_loadu_ps(x + i)), m);
  const float amax = max_of_lanes(m);
  if (amax < kAmaxMin) {
    for (size_t i = 0; i < columns; i += 16)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(q + i), _mm_setzero_si128());
    return 0;
  }
  const __m256 r = _mm256_set1_ps(127.f / amax);
  const __m128i least = _mm_set1_epi8(-127);
  for (size_t i = 0; i < columns; i += 16) {
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), r));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i + 8), r));
    const __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q + i), _mm_max_epi8(bytes, least));
  }
  return amax / 127.f;
}

// Rotates a query in place and quantizes it; sets the row's scale and sum. False if it is not finite.
inline TALLY_INLINE bool quantize_query(const Tile& tile, size_t row, float* q, int8_t* q8) {
  const size_t columns = tile.layout->key_columns;
  if (!all_finite_lanes(q, columns)) return false;
  rotate_lanes(q, tile.layout->key_dim, columns);
  if (!all_finite_lanes(q, columns)) return false;
  tile.memory.q_scale[row] = quantize_lanes(q, columns, q8) * tile.base2;
  int32_t sum = 0;
  for (size_t c = 0; c < columns; ++c) sum += q8[c];
  tile.memory.q_sum[row] = sum;
  return true;
}
inline TALLY_INLINE void clear_query(const Tile& tile, size_t row) {
  tile.memory.q_scale[row] = 0;
  tile.memory.q_sum[row] = 0;
}

// Functions of their own a row: there are few of them whatever the micro tile, and a call costs nothing here.

// Dot products of row t (in m.s) to scores; returns their max over registers.
template <class L, bool Masked>
__attribute__((noinline)) __m256 score_row(const Tile& tile, const GroupView& g, size_t row, int t,
                                           Micro& m) {
  constexpr int kN = kRowRegisters<L>, kChunk = 16 / L::kLanes;
  const auto scale = L::set(tile.memory.q_scale[row + static_cast<size_t>(t)]);
  typename L::F s[kN];
  unrolled<kN>([&](auto i) __attribute__((always_inline)) {
    const auto key_scale = L::load(g.key_scale[i / kChunk] + L::kLanes * (i % kChunk));
    s[i] = L::mul(L::to_float(L::load_i(m.s[t] + L::kLanes * i)), L::mul(key_scale, scale));
  });
  return finish_scores<L, Masked>(tile, m, t, s);
}

// Over registers: of the exponents the sum, of w = e * sv the max.
struct RowWeights {
  __m256 sum, max;
};
// Scores of row t to w (in m.s).
template <class L, bool Masked>
__attribute__((noinline)) RowWeights weigh_row(const GroupView& g, int t, Micro& m) {
  constexpr int kN = kRowRegisters<L>, kChunk = 16 / L::kLanes;
  typename L::F e[kN];
  const __m256 sum = exponents<L, Masked>(m, t, e);
  auto most = L::set(kWeightMin);
  unrolled<kN>([&](auto i) __attribute__((always_inline)) {
    auto w = L::mul(e[i], L::load(g.value_scale[i / kChunk] + L::kLanes * (i % kChunk)));
    // Scales that were not written may be NaN.
    if constexpr (Masked) w = L::keep(L::within(m.seen[t].begin, m.seen[t].end, L::kLanes * i), w);
    L::store(m.s[t] + L::kLanes * i, w);
    most = L::max(w, most);
  });
  return {sum, L::fold_max(most)};
}

// Dot products (in m.s) of T rows to scores, and their maxima.
template <class L, int T, bool Masked>
inline TALLY_INLINE void score_rows(const Tile& tile, const GroupView& g, size_t row, Micro& m) {
  if (tile.args->alibi != nullptr) set_distances<T>(tile, g, row, m);
  __m256 max[T];
  unrolled<T>([&](auto t)
                  __attribute__((always_inline)) { max[t] = score_row<L, Masked>(tile, g, row, t, m); });
  store_maxima<T>(max, m.group_max);
}

// Scores (in m.s) of T rows to w = e * sv (in m.s), and what is one number a row.
template <class L, int T, bool Masked>
inline TALLY_INLINE void weigh_rows(const GroupView& g, Micro& m) {
  __m256 max[T], sum[T];
  unrolled<T>([&](auto t) __attribute__((always_inline)) {
    const RowWeights w = weigh_row<L, Masked>(g, t, m);
    sum[t] = w.sum, max[t] = w.max;
  });
  store_sums<T>(sum, m.group_sum);
  store_maxima<T>(max, m.weight_max);
}

// What w is multiplied by to become p, for four rows.
inline TALLY_INLINE void weight_factors(const Micro& m, float* factors) {
  _mm_store_ps(factors, _mm_div_ps(_mm_set1_ps(kWeightMax), _mm_load_ps(m.weight_max)));
}

// What sums of p v8 are multiplied by, for four rows: (pm / 32767) * cg.
inline TALLY_INLINE void value_units(const Micro& m, float* units) {
  const __m128 unit = _mm_mul_ps(_mm_load_ps(m.weight_max), _mm_set1_ps(kWeightUnit));
  _mm_store_ps(units, _mm_mul_ps(unit, _mm_load_ps(m.add)));
}

// The lines of the group's scales, asked for while a K part or V part before it is consumed.
inline TALLY_INLINE void prefetch_scales(const GroupView& g) {
  for (size_t i = 0; i < kGroupChunks; ++i) {
    prefetch(reinterpret_cast<const std::byte*>(g.key_scale[i]));
    prefetch(reinterpret_cast<const std::byte*>(g.value_scale[i]));
  }
}

}  // namespace
}  // namespace tally::kernels::attention
