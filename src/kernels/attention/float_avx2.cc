// f32 and bf16 caches on AVX2: the chains of the definition kept as they are, with 8 positions (q.k) or 8
// columns (e.v) in lanes, so that a lane is one chain. f32 keys lie a token a row and are transposed 8 x 8 in
// registers; bf16 keys already hold 8 positions x 2 columns in 32 bytes and are widened exactly by a shift or
// a mask. Tile: 4 rows share each load; q.k 4 rows x 2 vectors, e.v 4 rows x 2 vectors: 8 chains hide the
// latency of the fma. Where a row does not see a whole group, its e.v chain runs alone over what it sees:
// masked positions are not even multiplied.
#include "kernels/attention/attention.h"
#include "kernels/attention/lanes_avx2.h"

namespace tally::kernels::attention {
namespace {

TALLY_INLINE __m256 low_bf16(__m256i pair) { return _mm256_castsi256_ps(_mm256_slli_epi32(pair, 16)); }
TALLY_INLINE __m256 high_bf16(__m256i pair) {
  return _mm256_castsi256_ps(_mm256_and_si256(pair, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}

// k[i] = columns c + i of 8 tokens, from 8 rows of 8 columns.
TALLY_INLINE void transpose8(const float* from, size_t stride, __m256* k) {
  __m256 r[8], u[8];
  unrolled<4>(
      [&](auto i) __attribute__((always_inline)) {  // rows i and i + 4 side by side, columns 0..3 and 4..7
        const float *a = from + static_cast<size_t>(i) * stride, *b = a + 4 * stride;
        r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_load_ps(a)), _mm_load_ps(b), 1);
        r[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_load_ps(a + 4)), _mm_load_ps(b + 4), 1);
      });
  unrolled<2>([&](auto h) __attribute__((always_inline)) {
    const __m256 *a = r + 4 * h, *b = a + 1, *c = a + 2, *d = a + 3;
    __m256* o = u + 4 * h;
    o[0] = _mm256_unpacklo_ps(*a, *b), o[1] = _mm256_unpackhi_ps(*a, *b);
    o[2] = _mm256_unpacklo_ps(*c, *d), o[3] = _mm256_unpackhi_ps(*c, *d);
    k[4 * h] = _mm256_shuffle_ps(o[0], o[2], 0x44), k[4 * h + 1] = _mm256_shuffle_ps(o[0], o[2], 0xEE);
    k[4 * h + 2] = _mm256_shuffle_ps(o[1], o[3], 0x44), k[4 * h + 3] = _mm256_shuffle_ps(o[1], o[3], 0xEE);
  });
}

// keys(): 8 columns of 8 tokens, token `half` * 8 of the chunk, column c. values(): 8 columns of token j of
// the chunk.
struct F32 {
  static constexpr size_t kBytes = 4;
  static TALLY_INLINE void keys(const std::byte* chunk, size_t columns, int half, size_t c, __m256* k) {
    transpose8(reinterpret_cast<const float*>(chunk) + static_cast<size_t>(8 * half) * columns + c, columns,
               k);
  }
  static TALLY_INLINE __m256 values(const std::byte* chunk, size_t columns, size_t j, size_t c) {
    return _mm256_load_ps(reinterpret_cast<const float*>(chunk) + j * columns + c);
  }
};
struct Bf16 {
  static constexpr size_t kBytes = 2;
  static TALLY_INLINE void keys(const std::byte* chunk, size_t, int half, size_t c, __m256* k) {
    const std::byte* from = chunk + c * 32 + static_cast<size_t>(32 * half);
    unrolled<4>([&](auto i) __attribute__((always_inline)) {
      const __m256i pair = _mm256_load_si256(reinterpret_cast<const __m256i*>(from + 64 * i));
      k[2 * i] = low_bf16(pair), k[2 * i + 1] = high_bf16(pair);
    });
  }
  static TALLY_INLINE __m256 values(const std::byte* chunk, size_t columns, size_t j, size_t c) {
    const auto* from = reinterpret_cast<const __m256i*>(chunk + (j / 2) * 4 * columns + 4 * c);
    return j % 2 == 0 ? low_bf16(_mm256_load_si256(from)) : high_bf16(_mm256_load_si256(from));
  }
};

template <class Codec, int T>
TALLY_INLINE void key_products(const Tile& tile, const GroupView& g, const GroupView* next, size_t row,
                               Micro& m) {
  const size_t columns = tile.layout->key_columns;
  const float* q = reinterpret_cast<const float*>(tile.memory.q) + row * columns;
  for (size_t chunk = 0; chunk < kGroupChunks; ++chunk)
    for (int half = 0; half < 2; ++half) {
      if (next != nullptr)
        prefetch(next->key[chunk] + static_cast<size_t>(half) * 8 * columns * Codec::kBytes,
                 8 * columns * Codec::kBytes);
      __m256 acc[T];
      unrolled<T>([&](auto t) __attribute__((always_inline)) { acc[t] = _mm256_setzero_ps(); });
      for (size_t c = 0; c < columns; c += 8) {
        __m256 k[8];
        Codec::keys(g.key[chunk], columns, half, c, k);
        unrolled<8>([&](auto i) __attribute__((always_inline)) {
          unrolled<T>([&](auto t) __attribute__((always_inline)) {
            acc[t] =
                _mm256_fmadd_ps(_mm256_set1_ps(q[static_cast<size_t>(t) * columns + c + i]), k[i], acc[t]);
          });
        });
      }
      unrolled<T>([&](auto t) __attribute__((always_inline)) {
        _mm256_store_ps(m.s[t] + chunk * kChunkTokens + static_cast<size_t>(8 * half), acc[t]);
      });
    }
}

template <int T, bool Masked>
TALLY_INLINE void softmax(const Tile& tile, Micro& m) {
  const __m256 scale = _mm256_set1_ps(tile.base2);
  for (int t = 0; t < T; ++t) {
    __m256 s[8];
    unrolled<8>([&](auto i) __attribute__((always_inline)) {
      s[i] = _mm256_mul_ps(_mm256_load_ps(m.s[t] + 8 * i), scale);
    });
    finish_scores<Masked>(tile, m, t, s);
  }
  for (int t = 0; t < T; ++t) {
    __m256 e[8];
    exponents<Masked>(m, t, e);
    unrolled<8>([&](auto i) __attribute__((always_inline)) { _mm256_store_ps(m.s[t] + 8 * i, e[i]); });
  }
}

// Rows t0 .. t0 + T - 1 of the micro tile over positions [begin, end) of the group.
template <class Codec, int T>
TALLY_INLINE void value_products(const Tile& tile, const GroupView& g, size_t row, const Micro& m, int t0,
                                 Visible seen) {
  const size_t columns = tile.layout->value_columns;
  const size_t begin = static_cast<size_t>(seen.begin), end = static_cast<size_t>(seen.end);
  for (size_t c = 0; c < columns; c += 16) {
    __m256 acc[T][2];
    unrolled<T>([&](auto t) __attribute__((always_inline)) { acc[t][0] = acc[t][1] = _mm256_setzero_ps(); });
    for (size_t j = begin; j < end; ++j) {
      const std::byte* chunk = g.value[j / kChunkTokens];
      const __m256 v0 = Codec::values(chunk, columns, j % kChunkTokens, c);
      const __m256 v1 = Codec::values(chunk, columns, j % kChunkTokens, c + 8);
      unrolled<T>([&](auto t) __attribute__((always_inline)) {
        const __m256 e = _mm256_set1_ps(m.s[t0 + t][j]);
        acc[t][0] = _mm256_fmadd_ps(e, v0, acc[t][0]);
        acc[t][1] = _mm256_fmadd_ps(e, v1, acc[t][1]);
      });
    }
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      float* out = tile.memory.span_out + (row + static_cast<size_t>(t0 + t)) * columns + c;
      const __m256 keep = _mm256_set1_ps(m.keep[t0 + t]), add = _mm256_set1_ps(m.add[t0 + t]);
      unrolled<2>([&](auto h) __attribute__((always_inline)) {
        _mm256_store_ps(out + 8 * h,
                        _mm256_fmadd_ps(_mm256_load_ps(out + 8 * h), keep, _mm256_mul_ps(acc[t][h], add)));
      });
    });
  }
}

template <class Codec, int T>
void micro_tile(const Tile& tile, const GroupView& g, const GroupView* next, size_t row) {
  Micro m;
  const bool full = see_group<T>(tile, g, row, m);
  key_products<Codec, T>(tile, g, next, row, m);
  if (next != nullptr)
    for (size_t chunk = 0; chunk < kGroupChunks; ++chunk)
      prefetch(next->value[chunk], kChunkTokens * tile.layout->value_columns * Codec::kBytes);
  if (full)
    softmax<T, false>(tile, m);
  else
    softmax<T, true>(tile, m);
  join_group<T>(tile, row, m);
  if (full)
    value_products<Codec, T>(tile, g, row, m, 0, m.seen[0]);
  else
    for (int t = 0; t < T; ++t) value_products<Codec, 1>(tile, g, row, m, t, m.seen[t]);
}

template <class Codec>
struct FloatAvx2 {
  static bool prepare(const Tile& tile, size_t row, const float* q) {
    const size_t columns = tile.layout->key_columns;
    float* to = reinterpret_cast<float*>(tile.memory.q) + row * columns;
    for (size_t c = 0; c < columns; ++c) to[c] = q[c];
    return all_finite_lanes(q, columns);
  }
  static void clear(const Tile& tile, size_t row) {
    float* to = reinterpret_cast<float*>(tile.memory.q) + row * tile.layout->key_columns;
    for (size_t c = 0; c < tile.layout->key_columns; ++c) to[c] = 0;
  }
  static void group(const Tile& tile, const GroupView& g, const GroupView& next, RowRange rows) {
    size_t row = rows.begin;
    const GroupView* ahead = &next;  // the first micro tile prefetches for all
    for (; row + 4 <= rows.end; row += 4, ahead = nullptr) micro_tile<Codec, 4>(tile, g, ahead, row);
    switch (rows.end - row) {
      case 3:
        return micro_tile<Codec, 3>(tile, g, ahead, row);
      case 2:
        return micro_tile<Codec, 2>(tile, g, ahead, row);
      case 1:
        return micro_tile<Codec, 1>(tile, g, ahead, row);
      default:
        return;
    }
  }
};

}  // namespace
}  // namespace tally::kernels::attention

namespace tally::kernels {

void attend_f32_avx2(const AttendArgs& args) {
  attention::attend_tiles<attention::FloatAvx2<attention::F32>>(args);
}
void attend_bf16_avx2(const AttendArgs& args) {
  attention::attend_tiles<attention::FloatAvx2<attention::Bf16>>(args);
}

}  // namespace tally::kernels
