#pragma once
// int8 by vpmaddwd, for tiers without vpdpbusd. Both products are one loop: bytes are widened to 16 bits as
// the even and the odd bytes of each 32-bit lane (no shuffle), and each half meets its pair of q (or p): 2
// multiplies and 2 adds for 32 products of a row, whatever their size. maddubs needs |k| and sign(q, k): as
// many operations, and could not take p, which has 15 bits.
//   q.k  lanes = positions, steps = 4 columns: [16 positions][4 columns] is 64 bytes. k + 128 is widened as
//   it
//        lies in memory: dots start from -128 * sum(q)
//   p.v  lanes = columns, steps = 4 positions: [16 columns][4 positions] is 64 bytes
// Tile on AVX2: 4 rows x 16 lanes = 8 accumulators, 4 registers of widened bytes, 2 of broadcasts, 2 of
// products: 16 registers; the widening is shared by 4 rows. With 32 registers q.k takes all 64 positions at
// once.

#include "kernels/attention/int8_rows.h"

namespace tally::kernels::attention {
namespace {

// Weights of 16 bits as pairs of one 4-step: dword 2 s = values (4 s, 4 s + 2), dword 2 s + 1 = the odd two.
struct alignas(64) Pairs {
  int32_t p[kMicroRows][kGroupTokens / 2];
};

// One row's: weight(i) is w of positions 8 i .. 8 i + 7.
template <class Weight>
inline TALLY_INLINE void pack_pairs(Weight weight, float factor, int32_t* pairs) {
  const __m256 r = _mm256_set1_ps(factor);
  unrolled<4>([&](auto i) __attribute__((always_inline)) {
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(weight(std::integral_constant<int, 2 * i>{}), r));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(weight(std::integral_constant<int, 2 * i + 1>{}), r));
    // Quads a0 b0 | a1 b1 of (p0, p1), and of (p2, p3) moved to the upper halves.
    const __m256i quads =
        _mm256_or_si256(_mm256_unpacklo_epi64(a, b), _mm256_slli_epi32(_mm256_unpackhi_epi64(a, b), 16));
    _mm256_store_si256(reinterpret_cast<__m256i*>(pairs + 8 * i), _mm256_permute4x64_epi64(quads, 0xD8));
  });
}

template <class L>
struct Int8Pairs {
  using I = typename L::I;
  static constexpr size_t kKeyStep = 64, kValueStep = 64;
  static constexpr int kChunkRegisters = 16 / L::kLanes;
  static constexpr int kSteps = L::kLanes == 8 ? 2 : 1;  // unrolled, where their bodies are short

  // acc[t][i] += even bytes of x[i] times pairs[t] + odd bytes times pairs[t + 1], of row t.
  template <int T, int R>
  static TALLY_INLINE void multiply_add(const I (&even)[R], const I (&odd)[R], const int32_t* pairs,
                                        size_t row_pairs, I (&acc)[T][R]) {
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      const int32_t* p = pairs + static_cast<size_t>(t) * row_pairs;
      const I pe = L::set_i(p[0]), po = L::set_i(p[1]);
      unrolled<R>([&](auto i) __attribute__((always_inline)) {
        acc[t][i] = L::add_i(acc[t][i], L::add_i(L::madd(even[i], pe), L::madd(odd[i], po)));
        L::pin(acc[t][i]);
      });
    });
  }

  // A function of its own, like value_columns: gcc 12 then keeps the accumulators in registers.
  template <int T>
  static __attribute__((noinline)) void key_products(const Tile& tile, const GroupView& g, const Ahead& ahead,
                                                     size_t row, Chunks chunks, Micro& m) {
    constexpr int R = L::kKeyChunks * kChunkRegisters;
    const size_t columns = tile.layout->key_columns, row_pairs = columns / 2;
    const int32_t* q = reinterpret_cast<const int32_t*>(tile.memory.q) + row * row_pairs;
    for (size_t chunk = key_begin<L>(chunks); chunk < chunks.end; chunk += L::kKeyChunks) {
      I acc[T][R];
      unrolled<T>([&](auto t) __attribute__((always_inline)) {
        const I start = L::set_i(-128 * tile.memory.q_sum[row + static_cast<size_t>(t)]);
        unrolled<R>([&](auto i) __attribute__((always_inline)) { acc[t][i] = start; });
      });
      for (size_t s = 0; s < columns / 4; s += kSteps) {
        unrolled<kSteps>([&](auto u) __attribute__((always_inline)) {
          I even[R], odd[R];
          unrolled<R>([&](auto i) __attribute__((always_inline)) {
            const std::byte* at = g.key[chunk + i / kChunkRegisters] + 64 * (s + u);
            const I k = L::load_i(at + 4 * L::kLanes * (i % kChunkRegisters));
            even[i] = L::even_u8(k), odd[i] = L::odd_u8(k);
          });
          unrolled<L::kKeyChunks>([&](auto i) __attribute__((always_inline)) {
            prefetch(ahead.value[chunk + i] + ahead.value_step * (s + u));
          });
          multiply_add<T, R>(even, odd, q + 2 * (s + u), row_pairs, acc);
        });
      }
      unrolled<T>([&](auto t) __attribute__((always_inline)) {
        unrolled<R>([&](auto i) __attribute__((always_inline)) {
          L::store_i(m.s[t] + chunk * kChunkTokens + L::kLanes * i, acc[t][i]);
        });
      });
    }
  }

  // w to 15-bit weights p, of T rows.
  template <int T>
  static TALLY_INLINE void pack_weights(const Micro& m, Pairs& pairs) {
    alignas(16) float factors[kMicroRows];
    weight_factors(m, factors);
    for (int t = 0; t < T; ++t)
      pack_pairs([&](auto i) __attribute__((always_inline)) { return _mm256_load_ps(m.s[t] + 8 * i); },
                 factors[t], pairs.p[t]);
  }

  struct Unit : MicroUnit {
    Pairs pairs;
    alignas(16) float units[kMicroRows];
  };
  // What value_columns reads.
  struct Weighed {
    const Unit& unit;
    const GroupView& g;
    const Ahead& ahead;
    float* out;
  };

  // Columns c .. c + R * kLanes - 1.
  template <int T, int R>
  static TALLY_INLINE void value_columns(const Tile& tile, const Weighed& w, size_t c) {
    const size_t columns = tile.layout->value_columns, stride = 4 * columns;
    constexpr int kLines = R * L::kLanes / 16;  // that a step consumes
    const std::byte* line = w.ahead.key_line(64 * c);
    I acc[T][R];
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      unrolled<R>([&](auto i) __attribute__((always_inline)) { acc[t][i] = L::set_i(0); });
    });
    for (size_t chunk = w.unit.chunks.begin; chunk < w.unit.chunks.end; ++chunk) {
      const std::byte* x = w.g.value[chunk] + 4 * c;
      for (size_t s = 0; s < 4; s += kSteps)
        unrolled<kSteps>([&](auto u) __attribute__((always_inline)) {
          I even[R], odd[R];
          unrolled<R>([&](auto i) __attribute__((always_inline)) {
            const I v = L::load_i(x + 4 * L::kLanes * i);
            even[i] = L::even_s8(v), odd[i] = L::odd_s8(v);
          });
          unrolled<kLines>([&](auto i) __attribute__((always_inline)) { prefetch(line + 64 * i); });
          multiply_add<T, R>(even, odd, w.unit.pairs.p[0] + chunk * 8 + 2 * (s + u), kGroupTokens / 2, acc);
          x += stride, line += 64 * kLines;
        });
    }
    float* out = w.out + c;
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      const auto keep = L::set(w.unit.m.keep[t]), scale = L::set(w.unit.units[t]);
      unrolled<R>([&](auto i) __attribute__((always_inline)) {
        float* to = out + t * columns + L::kLanes * i;
        const auto group_out = L::mul(L::to_float(acc[t][i]), scale);
        L::store(to, L::fma(L::load(to), keep, group_out));
      });
    });
  }

  template <int T>
  static __attribute__((noinline)) void value_products(const Tile& tile, const Weighed& w) {
    constexpr int R = 2;
    const size_t columns = tile.layout->value_columns;
    size_t c = 0;
    for (; c + R * L::kLanes <= columns; c += R * L::kLanes) value_columns<T, R>(tile, w, c);
    if constexpr (R * L::kLanes > 16)
      if (c < columns) value_columns<T, 1>(tile, w, c);
  }

  template <int T, bool Masked>
  static TALLY_INLINE void keys(const Tile& tile, const Meeting<GroupView>& at, Unit& unit) {
    unit.template begin<T, Masked>(tile, *at.g, at.row);
    key_products<T>(tile, *at.g, at.ahead, at.row, unit.chunks, unit.m);
  }
  template <int T, bool Masked>
  static TALLY_INLINE void scores(const Tile& tile, const Meeting<GroupView>& at, Unit& unit) {
    score_rows<L, T, Masked>(tile, *at.g, at.row, unit.m);
  }
  template <int T, bool Masked>
  static TALLY_INLINE void weights(const Tile& tile, const Meeting<GroupView>& at, Unit& unit) {
    weigh_rows<L, T, Masked>(*at.g, unit.m);
    pack_weights<T>(unit.m, unit.pairs);
    join_group<T>(tile, at.row, unit.m);
    value_units(unit.m, unit.units);
  }
  template <int T, bool Masked>
  static TALLY_INLINE void values(const Tile& tile, const Meeting<GroupView>& at, Unit& unit) {
    float* out = tile.memory.span_out + at.row * tile.layout->value_columns;
    value_products<T>(tile, {unit, *at.g, at.ahead, out});
  }

  static bool prepare(const Tile& tile, size_t row, float* q) {
    const size_t columns = tile.layout->key_columns;
    alignas(64) int8_t q8[kDimMax];
    if (!quantize_query(tile, row, q, q8)) return false;
    int32_t* pairs = reinterpret_cast<int32_t*>(tile.memory.q) + row * (columns / 2);
    for (size_t c = 0; c < columns; c += 16) {
      const __m128i x = _mm_load_si128(reinterpret_cast<const __m128i*>(q8 + c));
      const __m128i even = _mm_srai_epi16(_mm_slli_epi16(x, 8), 8), odd = _mm_srai_epi16(x, 8);
      auto* to = reinterpret_cast<__m128i*>(pairs + c / 2);
      _mm_storeu_si128(to, _mm_unpacklo_epi32(even, odd));
      _mm_storeu_si128(to + 1, _mm_unpackhi_epi32(even, odd));
    }
    return true;
  }
  static void clear(const Tile& tile, size_t row) {
    int32_t* pairs = reinterpret_cast<int32_t*>(tile.memory.q) + row * (tile.layout->key_columns / 2);
    for (size_t i = 0; i < tile.layout->key_columns / 2; ++i) pairs[i] = 0;
    clear_query(tile, row);
  }
  static void groups(const Tile& tile, const GroupView* g, size_t n, RowRange rows) {
    for (size_t i = 0; i < n; ++i) prefetch_scales(g[n + i]);
    meet_groups<Int8Pairs>(tile, g, g + n, n, rows);
  }
};

}  // namespace
}  // namespace tally::kernels::attention
