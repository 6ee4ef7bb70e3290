// int8 on AVX2. Both products are one loop: bytes are widened to 16 bits as even and odd values of each
// 32-bit lane (two shifts, no shuffle), and each half meets its pair of q (or p) by vpmaddwd: 2 multiplies
// and 2 adds for 32 products. maddubs on |k| and sign(q, k) needs as many operations and could not take p,
// which has 15 bits.
//   q.k  lanes = 8 positions, steps = 4 columns: [16 positions][4 columns] is 64 bytes
//   p.v  lanes = 8 columns, steps = 4 positions: [16 columns][4 positions] is 64 bytes
// Tile: 4 rows x 16 lanes = 8 accumulators, 4 registers of widened bytes, 2 of broadcasts, 2 of products: 16
// registers; the widening is shared by 4 rows. The next group's bytes are prefetched a pass at a time.
#include "kernels/attention/attention.h"
#include "kernels/attention/int8_lanes.h"

namespace tally::kernels::attention {
namespace {

// Weights of 16 bits as pairs of one 4-step: dword 2 s = values (4 s, 4 s + 2), dword 2 s + 1 = the odd two.
struct alignas(64) Pairs {
  int32_t p[kMicroRows][kGroupTokens / 2];
};

inline int32_t pair_of(int low, int high) {
  return static_cast<int32_t>((static_cast<uint32_t>(high) << 16) | (static_cast<uint32_t>(low) & 0xffffu));
}

// acc[t][half] += over `steps`: 16 lanes of 4 bytes at x + step * stride, times the pairs of row t.
template <int T, bool Biased>
TALLY_INLINE void multiply_add(const std::byte* x, size_t stride, size_t steps, const int32_t* pairs,
                               size_t row_pairs, __m256i (&acc)[T][2]) {
  for (size_t s = 0; s < steps; ++s) {
    __m256i even[2], odd[2];
    unrolled<2>([&](auto h) __attribute__((always_inline)) {
      __m256i b = _mm256_load_si256(reinterpret_cast<const __m256i*>(x + s * stride + 32 * h));
      if constexpr (Biased) b = _mm256_xor_si256(b, _mm256_set1_epi8(-128));
      even[h] = _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8);
      odd[h] = _mm256_srai_epi16(b, 8);
    });
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      const int32_t* p = pairs + static_cast<size_t>(t) * row_pairs + 2 * s;
      const __m256i pe = _mm256_set1_epi32(p[0]), po = _mm256_set1_epi32(p[1]);
      unrolled<2>([&](auto h) __attribute__((always_inline)) {
        acc[t][h] = _mm256_add_epi32(
            acc[t][h], _mm256_add_epi32(_mm256_madd_epi16(even[h], pe), _mm256_madd_epi16(odd[h], po)));
      });
    });
  }
}

template <int T>
TALLY_INLINE void clear(__m256i (&acc)[T][2]) {
  unrolled<T>([&](auto t) __attribute__((always_inline)) { acc[t][0] = acc[t][1] = _mm256_setzero_si256(); });
}

template <int T>
TALLY_INLINE void key_products(const Tile& tile, const GroupView& g, const GroupView* next, size_t row,
                               Micro& m) {
  const size_t columns = tile.layout->key_columns, row_pairs = columns / 2;
  const int32_t* q = reinterpret_cast<const int32_t*>(tile.memory.q) + row * row_pairs;
  for (size_t chunk = 0; chunk < kGroupChunks; ++chunk) {
    if (next != nullptr) prefetch(next->key[chunk], columns * kChunkTokens);
    __m256i acc[T][2];
    clear<T>(acc);
    multiply_add<T, true>(g.key[chunk], 64, columns / 4, q, row_pairs, acc);
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      unrolled<2>([&](auto h) __attribute__((always_inline)) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(m.s[t] + chunk * kChunkTokens + 8 * h), acc[t][h]);
      });
    });
  }
}

// w to 15-bit weights p.
template <int T>
TALLY_INLINE void pack_weights(const Micro& m, Pairs& pairs) {
  for (int t = 0; t < T; ++t) {
    const __m256 r = _mm256_set1_ps(kWeightMax / m.weight_max[t]);
    unrolled<4>([&](auto i) __attribute__((always_inline)) {
      const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(m.s[t] + 16 * i), r));
      const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(m.s[t] + 16 * i + 8), r));
      // Quads a0 b0 | a1 b1 of (p0, p1), and of (p2, p3) moved to the upper halves.
      const __m256i quads =
          _mm256_or_si256(_mm256_unpacklo_epi64(a, b), _mm256_slli_epi32(_mm256_unpackhi_epi64(a, b), 16));
      _mm256_store_si256(reinterpret_cast<__m256i*>(pairs.p[t] + 8 * i),
                         _mm256_permute4x64_epi64(quads, 0xD8));
    });
  }
}

template <int T>
TALLY_INLINE void value_products(const Tile& tile, const GroupView& g, const GroupView* next, size_t row,
                                 const Micro& m, const Pairs& pairs) {
  const size_t columns = tile.layout->value_columns, passes = columns / 16;
  float unit[T];
  unrolled<T>([&](auto t)
                  __attribute__((always_inline)) { unit[t] = (m.weight_max[t] * kWeightUnit) * m.add[t]; });
  for (size_t pass = 0; pass < passes; ++pass) {
    if (next != nullptr)
      for (size_t chunk = 0; chunk < kGroupChunks; ++chunk)  // 4 of the chunk's columns / 4 lines
        prefetch(next->value[chunk] + pass * 256, 256);
    __m256i acc[T][2];
    clear<T>(acc);
    for (size_t chunk = 0; chunk < kGroupChunks; ++chunk)
      multiply_add<T, false>(g.value[chunk] + pass * 64, columns * 4, 4, pairs.p[0] + chunk * 8,
                             kGroupTokens / 2, acc);
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      float* out = tile.memory.span_out + (row + static_cast<size_t>(t)) * columns + pass * 16;
      const __m256 keep = _mm256_set1_ps(m.keep[t]), scale = _mm256_set1_ps(unit[t]);
      unrolled<2>([&](auto h) __attribute__((always_inline)) {
        const __m256 group_out = _mm256_mul_ps(_mm256_cvtepi32_ps(acc[t][h]), scale);
        _mm256_store_ps(out + 8 * h, _mm256_fmadd_ps(_mm256_load_ps(out + 8 * h), keep, group_out));
      });
    });
  }
}

template <int T>
void micro_tile(const Tile& tile, const GroupView& g, const GroupView* next, size_t row) {
  Micro m;
  Pairs pairs;
  const bool full = see_group<T>(tile, g, row, m);
  key_products<T>(tile, g, next, row, m);
  if (full)
    weigh_rows<T, false>(tile, g, row, m);
  else
    weigh_rows<T, true>(tile, g, row, m);
  pack_weights<T>(m, pairs);
  join_group<T>(tile, row, m);
  value_products<T>(tile, g, next, row, m, pairs);
}

struct Int8Avx2 {
  static bool prepare(const Tile& tile, size_t row, float* q) {
    const size_t columns = tile.layout->key_columns;
    alignas(64) int8_t q8[kDimMax];
    if (!quantize_query(tile, row, q, q8)) return false;
    int32_t* pairs = reinterpret_cast<int32_t*>(tile.memory.q) + row * (columns / 2);
    for (size_t c = 0; c < columns; c += 4) {
      pairs[c / 2] = pair_of(q8[c], q8[c + 2]);
      pairs[c / 2 + 1] = pair_of(q8[c + 1], q8[c + 3]);
    }
    return true;
  }
  static void clear(const Tile& tile, size_t row) {
    int32_t* pairs = reinterpret_cast<int32_t*>(tile.memory.q) + row * (tile.layout->key_columns / 2);
    for (size_t i = 0; i < tile.layout->key_columns / 2; ++i) pairs[i] = 0;
    tile.memory.q_scale[row] = 0;
  }
  static void group(const Tile& tile, const GroupView& g, const GroupView& next, RowRange rows) {
    size_t row = rows.begin;
    const GroupView* ahead = &next;  // the first micro tile prefetches for all
    for (; row + 4 <= rows.end; row += 4, ahead = nullptr) micro_tile<4>(tile, g, ahead, row);
    switch (rows.end - row) {
      case 3:
        return micro_tile<3>(tile, g, ahead, row);
      case 2:
        return micro_tile<2>(tile, g, ahead, row);
      case 1:
        return micro_tile<1>(tile, g, ahead, row);
      default:
        return;
    }
  }
};

void put_head(const tensor::KvLayout& l, TokenPlace at, const int8_t* k, const int8_t* v) {
  auto* keys = reinterpret_cast<uint8_t*>(at.head_block) + key_index_int8(l.key_columns, at.token, 0);
  for (size_t c = 0; c < l.key_columns; c += 4) {
    uint32_t four;
    __builtin_memcpy(&four, k + c, 4);
    four ^= 0x80808080u;
    __builtin_memcpy(keys + c * 16, &four, 4);
  }
  auto* values = reinterpret_cast<int8_t*>(at.head_block + l.value_offset) +
                 value_index_int8(l.value_columns, at.token, 0);
  for (size_t c = 0; c < l.value_columns; ++c) values[c * 4] = v[c];
}

// Copies a head behind zeros up to the stored columns; false if it is not finite.
bool load_head(const float* x, size_t dim, size_t columns, float* out) {
  for (size_t c = 0; c < dim; ++c) out[c] = x[c];
  for (size_t c = dim; c < columns; ++c) out[c] = 0;
  return all_finite_lanes(out, columns);
}

bool store_int8(const KvSequence& kv, size_t position, const float* k, const float* v) {
  const tensor::KvLayout& l = *kv.layout;
  alignas(64) float x[kDimMax], y[kDimMax];
  alignas(64) int8_t k8[kDimMax], v8[kDimMax];
  bool finite = true;
  for (size_t h = 0; finite && h < l.kv_heads; ++h) {
    finite = load_head(k + h * l.key_dim, l.key_dim, l.key_columns, x) &&
             load_head(v + h * l.value_dim, l.value_dim, l.value_columns, y);
    if (!finite) break;
    rotate_lanes(x, l.key_dim, l.key_columns);
    finite = all_finite_lanes(x, l.key_columns);
    const TokenPlace at = token_place(kv, position, h);
    key_scales(l, at.head_block)[at.token] = quantize_lanes(x, l.key_columns, k8);
    value_scales(l, at.head_block)[at.token] = quantize_lanes(y, l.value_columns, v8);
    put_head(l, at, k8, v8);
  }
  if (finite) return true;
  for (size_t c = 0; c < kDimMax; ++c) k8[c] = v8[c] = 0;
  for (size_t h = 0; h < l.kv_heads; ++h) {
    const TokenPlace at = token_place(kv, position, h);
    key_scales(l, at.head_block)[at.token] = value_scales(l, at.head_block)[at.token] = 0;
    put_head(l, at, k8, v8);
  }
  return false;
}

}  // namespace
}  // namespace tally::kernels::attention

namespace tally::kernels {

bool store_int8_avx2(const KvSequence& kv, size_t position, const float* k, const float* v) {
  return attention::store_int8(kv, position, k, v);
}
void attend_int8_avx2(const AttendArgs& args) { attention::attend_tiles<attention::Int8Avx2>(args); }

}  // namespace tally::kernels
