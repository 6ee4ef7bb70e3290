#pragma once
// What the int8 forms share on 8 lanes: rotation, quantization, and the softmax between the two integer
// products. The forms differ in the products, and so in how they lay out q and p.

#include "kernels/attention/lanes_avx2.h"

namespace tally::kernels::attention {
namespace {

// rotate() on a head padded with zeros to a multiple of 16 columns.
TALLY_INLINE void rotate_lanes(float* x, size_t d, size_t columns) {
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
TALLY_INLINE float quantize_lanes(const float* x, size_t columns, int8_t* q) {
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

// Rotates a query in place and quantizes it; sets the row's scale. False if it is not finite.
TALLY_INLINE bool quantize_query(const Tile& tile, size_t row, float* q, int8_t* q8) {
  const size_t columns = tile.layout->key_columns;
  if (!all_finite_lanes(q, columns)) return false;
  rotate_lanes(q, tile.layout->key_dim, columns);
  if (!all_finite_lanes(q, columns)) return false;
  tile.memory.q_scale[row] = quantize_lanes(q, columns, q8) * tile.base2;
  return true;
}

// Dot products (in m.s) to scores, and these to w = e * sv (in m.s) and their max.
template <int T, bool Masked>
TALLY_INLINE void weigh_rows(const Tile& tile, const GroupView& g, size_t row, Micro& m) {
  for (int t = 0; t < T; ++t) {
    const __m256 scale = _mm256_set1_ps(tile.memory.q_scale[row + static_cast<size_t>(t)]);
    __m256 s[8];
    unrolled<8>([&](auto i) __attribute__((always_inline)) {
      const __m256i dots = _mm256_load_si256(reinterpret_cast<const __m256i*>(m.s[t] + 8 * i));
      const __m256 sk = _mm256_loadu_ps(g.key_scale[i / 2] + 8 * (i % 2));
      s[i] = _mm256_mul_ps(_mm256_cvtepi32_ps(dots), _mm256_mul_ps(sk, scale));
    });
    finish_scores<Masked>(tile, m, t, s);
  }
  for (int t = 0; t < T; ++t) {
    __m256 e[8];
    exponents<Masked>(m, t, e);
    __m256 max = _mm256_set1_ps(kWeightMin);
    unrolled<8>([&](auto i) __attribute__((always_inline)) {
      __m256 w = _mm256_mul_ps(e[i], _mm256_loadu_ps(g.value_scale[i / 2] + 8 * (i % 2)));
      if constexpr (Masked) w = _mm256_and_ps(w, visible_lanes(m.seen[t], i));  // unwritten scales may be NaN
      _mm256_store_ps(m.s[t] + 8 * i, w);
      max = _mm256_max_ps(w, max);
    });
    m.weight_max[t] = max_of_lanes(max);
  }
}

}  // namespace
}  // namespace tally::kernels::attention
