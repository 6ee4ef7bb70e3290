// int8 on AVX-512 VNNI. k + 128 is the unsigned operand as it lies in memory: dots start from -128 * sum(q).
// p has 15 bits and goes as two unsigned planes, p = 128 * high + low, whose sums are joined as integers. The
// softmax between the two products runs on 8 lanes, shared with the AVX2 form: it is a small part here.
//   q.k  4 rows x 64 positions: 16 accumulators, 4 registers of keys, one of broadcasts
//   p.v  4 rows x 32 columns x 2 planes: 16 accumulators, 2 registers of values, two of broadcasts
// A head that is not a multiple of 32 columns ends with a pass of 16.
#include "kernels/attention/attention.h"
#include "kernels/attention/int8_lanes.h"
#include "kernels/intrin512.h"

namespace TALLY_KERNELS_512 {
namespace {

using attention::GroupView;
using attention::kGroupChunks;
using attention::kGroupTokens;
using attention::kMicroRows;
using attention::Micro;
using attention::RowRange;
using attention::Tile;
using attention::unrolled;

// The two planes of the weights, by position.
struct alignas(64) Planes {
  uint8_t high[kMicroRows][kGroupTokens], low[kMicroRows][kGroupTokens];
};

TALLY_INLINE __m512i broadcast_4(const void* from) {
  int32_t v;
  __builtin_memcpy(&v, from, sizeof v);
  return _mm512_set1_epi32(v);
}

template <int T>
TALLY_INLINE void key_products(const Tile& tile, const GroupView& g, const GroupView* next, size_t row,
                               Micro& m) {
  const size_t columns = tile.layout->key_columns;
  const auto* q = reinterpret_cast<const int8_t*>(tile.memory.q) + row * columns;
  __m512i acc[T][kGroupChunks];
  unrolled<T>([&](auto t) __attribute__((always_inline)) {
    const __m512i start = _mm512_set1_epi32(-128 * tile.memory.q_sum[row + static_cast<size_t>(t)]);
    unrolled<kGroupChunks>([&](auto i) __attribute__((always_inline)) { acc[t][i] = start; });
  });
  for (size_t s = 0; s < columns / 4; ++s) {
    __m512i k[kGroupChunks];
    unrolled<kGroupChunks>([&](auto i) __attribute__((always_inline)) {
      k[i] = _mm512_load_si512(g.key[i] + 64 * s);
      if (next != nullptr) attention::prefetch(next->key[i] + 64 * s, 64);
    });
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      const __m512i four = broadcast_4(q + static_cast<size_t>(t) * columns + 4 * s);
      unrolled<kGroupChunks>([&](auto i) __attribute__((always_inline)) {
        acc[t][i] = _mm512_dpbusd_epi32(acc[t][i], k[i], four);
      });
    });
  }
  unrolled<T>([&](auto t) __attribute__((always_inline)) {
    unrolled<kGroupChunks>(
        [&](auto i) __attribute__((always_inline)) { _mm512_store_si512(m.s[t] + 16 * i, acc[t][i]); });
  });
}

// 32 weights to bytes, in order.
TALLY_INLINE void put_bytes(uint8_t* to, __m256i low16, __m256i high16) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low16, high16), order);
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), bytes);
}

template <int T>
TALLY_INLINE void pack_weights(const Micro& m, Planes& planes) {
  for (int t = 0; t < T; ++t) {
    const __m256 r = _mm256_set1_ps(attention::kWeightMax / m.weight_max[t]);
    const auto weights = [&](int i) __attribute__((always_inline)) {
      return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(m.s[t] + 8 * i), r));
    };
    unrolled<2>([&](auto half) __attribute__((always_inline)) {
      const __m256i a = _mm256_packs_epi32(weights(4 * half), weights(4 * half + 1));
      const __m256i b = _mm256_packs_epi32(weights(4 * half + 2), weights(4 * half + 3));
      const __m256i seven = _mm256_set1_epi16(127);
      put_bytes(planes.high[t] + 32 * half, _mm256_srli_epi16(a, 7), _mm256_srli_epi16(b, 7));
      put_bytes(planes.low[t] + 32 * half, _mm256_and_si256(a, seven), _mm256_and_si256(b, seven));
    });
  }
}

// Columns c .. c + 16 * R - 1.
template <int T, int R>
TALLY_INLINE void value_columns(const Tile& tile, const GroupView& g, const GroupView* next, size_t row,
                                const Micro& m, const Planes& planes, size_t c) {
  const size_t columns = tile.layout->value_columns;
  __m512i high[T][R], low[T][R];
  unrolled<T>([&](auto t) __attribute__((always_inline)) {
    unrolled<R>([&](auto i)
                    __attribute__((always_inline)) { high[t][i] = low[t][i] = _mm512_setzero_si512(); });
  });
  for (size_t j = 0; j < kGroupTokens; j += 4) {
    const size_t offset = j % attention::kChunkTokens * columns + 4 * c;
    __m512i v[R];
    unrolled<R>([&](auto i) __attribute__((always_inline)) {
      v[i] = _mm512_load_si512(g.value[j / attention::kChunkTokens] + offset + 64 * i);
      if (next != nullptr)
        attention::prefetch(next->value[j / attention::kChunkTokens] + offset + 64 * i, 64);
    });
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      const __m512i ph = broadcast_4(planes.high[t] + j), pl = broadcast_4(planes.low[t] + j);
      unrolled<R>([&](auto i) __attribute__((always_inline)) {
        high[t][i] = _mm512_dpbusd_epi32(high[t][i], ph, v[i]);
        low[t][i] = _mm512_dpbusd_epi32(low[t][i], pl, v[i]);
      });
    });
  }
  unrolled<T>([&](auto t) __attribute__((always_inline)) {
    float* out = tile.memory.span_out + (row + static_cast<size_t>(t)) * columns + c;
    const __m512 keep = _mm512_set1_ps(m.keep[t]);
    const __m512 scale = _mm512_set1_ps((m.weight_max[t] * attention::kWeightUnit) * m.add[t]);
    unrolled<R>([&](auto i) __attribute__((always_inline)) {
      const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(high[t][i], 7), low[t][i]);
      const __m512 group_out = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), scale);
      _mm512_store_ps(out + 16 * i, _mm512_fmadd_ps(_mm512_load_ps(out + 16 * i), keep, group_out));
    });
  });
}

template <int T>
void micro_tile(const Tile& tile, const GroupView& g, const GroupView* next, size_t row) {
  Micro m;
  Planes planes;
  const bool full = attention::see_group<T>(tile, g, row, m);
  key_products<T>(tile, g, next, row, m);
  if (full)
    attention::weigh_rows<T, false>(tile, g, row, m);
  else
    attention::weigh_rows<T, true>(tile, g, row, m);
  pack_weights<T>(m, planes);
  attention::join_group<T>(tile, row, m);
  const size_t columns = tile.layout->value_columns;
  size_t c = 0;
  for (; c + 32 <= columns; c += 32) value_columns<T, 2>(tile, g, next, row, m, planes, c);
  if (c < columns) value_columns<T, 1>(tile, g, next, row, m, planes, c);
}

struct Int8Avx512 {
  static bool prepare(const Tile& tile, size_t row, float* q) {
    const size_t columns = tile.layout->key_columns;
    auto* q8 = reinterpret_cast<int8_t*>(tile.memory.q) + row * columns;
    if (!attention::quantize_query(tile, row, q, q8)) return false;
    int32_t sum = 0;
    for (size_t c = 0; c < columns; ++c) sum += q8[c];
    tile.memory.q_sum[row] = sum;
    return true;
  }
  static void clear(const Tile& tile, size_t row) {
    auto* q8 = reinterpret_cast<int8_t*>(tile.memory.q) + row * tile.layout->key_columns;
    for (size_t c = 0; c < tile.layout->key_columns; ++c) q8[c] = 0;
    tile.memory.q_sum[row] = 0;
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

}  // namespace

void attend_int8_avx512vnni(const AttendArgs& args) { attention::attend_tiles<Int8Avx512>(args); }

}  // namespace TALLY_KERNELS_512
