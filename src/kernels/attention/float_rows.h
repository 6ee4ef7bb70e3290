#pragma once
// f32 and bf16 caches: the chains of the definition kept as they are, with positions (q.k) or columns (e.v)
// in lanes, so that a lane is one chain. bf16 pairs are widened exactly by a shift or a mask; f32 keys lie a
// token a row and are transposed 8 x 8 on their way into registers. Tile: 4 rows x 2 registers (4 in q.k
// where there are 32 of them), so that a load and a broadcast serve several fma and 8 or more chains hide
// their latency. Where rows do not see a whole group, e.v runs over the positions all rows of the micro tile
// see, and each row's chain alone over what it sees before and behind them: masked positions are not even
// multiplied.

#include "kernels/attention/micro_tile.h"

namespace tally::kernels::attention {
namespace {

// 8 rows of 8 floats, turned: column c to out + c * stride.
inline TALLY_INLINE void transpose8(const float* from, size_t from_stride, float* out, size_t stride) {
  __m256 r[8], u[8];
  unrolled<4>([&](auto i) __attribute__((always_inline)) {  // rows i and i + 4 side by side
    const float *a = from + i * from_stride, *b = a + 4 * from_stride;
    r[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_load_ps(a)), _mm_load_ps(b), 1);
    r[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_load_ps(a + 4)), _mm_load_ps(b + 4), 1);
  });
  unrolled<2>([&](auto h) __attribute__((always_inline)) {
    const __m256* a = r + 4 * h;
    __m256* o = u + 4 * h;
    o[0] = _mm256_unpacklo_ps(a[0], a[1]), o[1] = _mm256_unpackhi_ps(a[0], a[1]);
    o[2] = _mm256_unpacklo_ps(a[2], a[3]), o[3] = _mm256_unpackhi_ps(a[2], a[3]);
    float* to = out + 4 * h * stride;
    _mm256_store_ps(to, _mm256_shuffle_ps(o[0], o[2], 0x44));
    _mm256_store_ps(to + stride, _mm256_shuffle_ps(o[0], o[2], 0xEE));
    _mm256_store_ps(to + 2 * stride, _mm256_shuffle_ps(o[1], o[3], 0x44));
    _mm256_store_ps(to + 3 * stride, _mm256_shuffle_ps(o[1], o[3], 0xEE));
  });
}

// A codec says how keys come as registers of positions, and values as registers of columns.
//   Keys<R>: kKeyColumns columns of the positions that R registers hold; at(u, i): column u, register i
//   values: columns c .. c + kLanes - 1 of token j and of token j + 1, j even
template <class L>
struct F32Cache {
  using F = typename L::F;
  static constexpr size_t kBytes = 4;
  static constexpr int kKeyColumns = 8;
  template <int R>
  struct Keys {
    alignas(64) float column[kKeyColumns][R * L::kLanes];
    // Columns c .. c + 7 of the positions of R * kLanes / 16 chunks.
    TALLY_INLINE void load(const std::byte* const* chunks, size_t columns, size_t c) {
      unrolled<R * L::kLanes / 8>([&](auto i) __attribute__((always_inline)) {
        const float* from = reinterpret_cast<const float*>(chunks[i / 2]) + i % 2 * 8 * columns + c;
        transpose8(from, columns, column[0] + 8 * i, R * L::kLanes);
      });
    }
    TALLY_INLINE F at(int u, int i) const { return L::load(column[u] + L::kLanes * i); }
  };
  static TALLY_INLINE void values(const std::byte* chunk, size_t columns, size_t j, size_t c, F* even,
                                  F* odd) {
    const float* from = reinterpret_cast<const float*>(chunk) + j * columns + c;
    *even = L::load(from), *odd = L::load(from + columns);
  }
};

template <class L>
struct Bf16Cache {
  using F = typename L::F;
  static constexpr size_t kBytes = 2;
  static constexpr int kKeyColumns = 2;
  template <int R>
  struct Keys {
    typename L::I pairs[R];
    TALLY_INLINE void load(const std::byte* const* chunks, size_t, size_t c) {
      constexpr int kChunkRegisters = 16 / L::kLanes;
      unrolled<R>([&](auto i) __attribute__((always_inline)) {
        pairs[i] = L::load_i(chunks[i / kChunkRegisters] + 32 * c + 4 * L::kLanes * (i % kChunkRegisters));
      });
    }
    TALLY_INLINE F at(int u, int i) const { return u == 0 ? L::low_bf16(pairs[i]) : L::high_bf16(pairs[i]); }
  };
  static TALLY_INLINE void values(const std::byte* chunk, size_t columns, size_t j, size_t c, F* even,
                                  F* odd) {
    const auto pair = L::load_i(chunk + j * 2 * columns + 4 * c);
    *even = L::low_bf16(pair), *odd = L::high_bf16(pair);
  }
};

template <class L, class Cache>
struct FloatRows {
  using F = typename L::F;
  static constexpr size_t kKeyStep = 64 * Cache::kBytes, kValueStep = 64;

  template <int T>
  static __attribute__((noinline)) void key_products(const Tile& tile, const GroupView& g, const Ahead& ahead,
                                                     size_t row, Chunks chunks, Micro& m) {
    constexpr int R = L::kKeyChunks * 16 / L::kLanes, kN = Cache::kKeyColumns;
    const size_t columns = tile.layout->key_columns;
    const float* q = reinterpret_cast<const float*>(tile.memory.q) + row * columns;
    for (size_t chunk = key_begin<L>(chunks); chunk < chunks.end; chunk += L::kKeyChunks) {
      F acc[T][R];
      unrolled<T>([&](auto t) __attribute__((always_inline)) {
        unrolled<R>([&](auto i) __attribute__((always_inline)) { acc[t][i] = L::zero(); });
      });
      for (size_t c = 0; c < columns; c += kN) {
        typename Cache::template Keys<R> keys;
        keys.load(g.key + chunk, columns, c);
        unrolled<L::kKeyChunks>([&](auto i) __attribute__((always_inline)) {
          unrolled<kN* static_cast<int>(Cache::kBytes) / 4>([&](auto line) __attribute__((always_inline)) {
            prefetch(ahead.value[chunk + i] + 16 * Cache::kBytes * c + 64 * line);
          });
        });
        const auto add_column = [&](auto u) __attribute__((always_inline)) {
          F k[R];
          unrolled<R>([&](auto i) __attribute__((always_inline)) { k[i] = keys.at(u, i); });
          unrolled<T>([&](auto t) __attribute__((always_inline)) {
            const F x = L::set(q[t * columns + c + static_cast<size_t>(u)]);
            unrolled<R>([&](auto i) __attribute__((always_inline)) {
              acc[t][i] = L::fma(x, k[i], acc[t][i]);
              L::pin(acc[t][i]);
            });
          });
        };
        if constexpr (kN == 2)
          unrolled<kN>(add_column);
        else
          for (int u = 0; u < kN; ++u) add_column(u);
      }
      unrolled<T>([&](auto t) __attribute__((always_inline)) {
        unrolled<R>([&](auto i) __attribute__((always_inline)) {
          L::store(m.s[t] + chunk * kChunkTokens + L::kLanes * i, acc[t][i]);
        });
      });
    }
  }

  // Dot products of row t (in m.s) to scores; returns their max over registers.
  template <bool Masked>
  static __attribute__((noinline)) __m256 score_row(const Tile& tile, int t, Micro& m) {
    constexpr int kN = kRowRegisters<L>;
    const F scale = L::set(tile.base2);
    F s[kN];
    unrolled<kN>([&](auto i) __attribute__((always_inline)) {
      s[i] = L::mul(L::load(m.s[t] + L::kLanes * i), scale);
    });
    return finish_scores<L, Masked>(tile, m, t, s);
  }
  using Unit = MicroUnit;
  // What value_columns reads.
  struct Weighed {
    const GroupView* g;
    const Ahead* ahead;
    const Micro* m;
    Visible common;  // positions that all rows see
    float* out;
  };

  // Chains of T rows (weights e [T][kGroupTokens]) over positions [begin, end) of the group.
  template <int T, int R, int kLines>
  static TALLY_INLINE void add_values(const Weighed& w, const float* e, size_t columns, size_t c,
                                      Visible seen, F (&acc)[T][R]) {
    const auto begin = static_cast<size_t>(seen.begin), end = static_cast<size_t>(seen.end);
    const std::byte* line = kLines == 0 ? nullptr : w.ahead->key_line(kGroupTokens * Cache::kBytes * c);
    const auto step = [&](size_t j, auto first, auto second) __attribute__((always_inline)) {
      F even[R], odd[R];
      unrolled<R>([&](auto i) __attribute__((always_inline)) {
        Cache::values(w.g->value[j / kChunkTokens], columns, j % kChunkTokens, c + L::kLanes * i, even + i,
                      odd + i);
      });
      unrolled<kLines>([&](auto i) __attribute__((always_inline)) { prefetch(line + 64 * i); });
      line += 64 * kLines;
      unrolled<T>([&](auto t) __attribute__((always_inline)) {
        const float* weight = e + t * kGroupTokens + j;
        if constexpr (first) {
          const F x = L::set(weight[0]);
          unrolled<R>([&](auto i) __attribute__((always_inline)) {
            acc[t][i] = L::fma(x, even[i], acc[t][i]);
            L::pin(acc[t][i]);
          });
        }
        if constexpr (second) {
          const F x = L::set(weight[1]);
          unrolled<R>([&](auto i) __attribute__((always_inline)) {
            acc[t][i] = L::fma(x, odd[i], acc[t][i]);
            L::pin(acc[t][i]);
          });
        }
      });
    };
    size_t j = begin;
    if (j < end && j % 2 != 0) step(j - 1, std::false_type{}, std::true_type{}), ++j;
    for (; j + 2 <= end; j += 2) step(j, std::true_type{}, std::true_type{});
    if (j < end) step(j, std::true_type{}, std::false_type{});
  }

  // The chain of one row, continued in memory: sums [R * kLanes].
  template <int R>
  static __attribute__((noinline)) void add_row_values(const Weighed& w, int t, size_t columns, size_t c,
                                                       Visible seen, float* sums) {
    F acc[1][R];
    unrolled<R>([&](auto i) __attribute__((always_inline)) { acc[0][i] = L::load(sums + L::kLanes * i); });
    add_values<1, R, 0>(w, w.m->s[t], columns, c, seen, acc);
    unrolled<R>([&](auto i) __attribute__((always_inline)) { L::store(sums + L::kLanes * i, acc[0][i]); });
  }

  // Columns c .. c + R * kLanes - 1.
  template <int T, int R, bool Masked>
  static TALLY_INLINE void value_columns(const Weighed& w, size_t columns, size_t c) {
    constexpr int kLines = 2 * R * L::kLanes * static_cast<int>(Cache::kBytes) / 64;
    alignas(64) float sums[T][R * L::kLanes];
    F acc[T][R];
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      unrolled<R>([&](auto i) __attribute__((always_inline)) { acc[t][i] = L::zero(); });
    });
    if constexpr (Masked && T > 1) {
      unrolled<T>([&](auto t) __attribute__((always_inline)) {
        const Visible seen = w.m->seen[t];
        const Visible before = {seen.begin, seen.end < w.common.begin ? seen.end : w.common.begin};
        if (before.begin >= before.end) return;
        for (float& x : sums[t]) x = 0;
        add_row_values<R>(w, t, columns, c, before, sums[t]);
        unrolled<R>([&](auto i)
                        __attribute__((always_inline)) { acc[t][i] = L::load(sums[t] + L::kLanes * i); });
      });
    }
    add_values<T, R, kLines>(w, w.m->s[0], columns, c, w.common, acc);
    if constexpr (Masked && T > 1) {
      unrolled<T>([&](auto t) __attribute__((always_inline)) {
        const Visible seen = w.m->seen[t];
        const Visible behind = {seen.begin > w.common.end ? seen.begin : w.common.end, seen.end};
        if (behind.begin >= behind.end) return;
        unrolled<R>([&](auto i)
                        __attribute__((always_inline)) { L::store(sums[t] + L::kLanes * i, acc[t][i]); });
        add_row_values<R>(w, t, columns, c, behind, sums[t]);
        unrolled<R>([&](auto i)
                        __attribute__((always_inline)) { acc[t][i] = L::load(sums[t] + L::kLanes * i); });
      });
    }
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      const F keep = L::set(w.m->keep[t]), add = L::set(w.m->add[t]);
      unrolled<R>([&](auto i) __attribute__((always_inline)) {
        float* to = w.out + t * columns + c + L::kLanes * i;
        L::store(to, L::fma(L::load(to), keep, L::mul(acc[t][i], add)));
      });
    });
  }

  template <int T, bool Masked>
  static __attribute__((noinline)) void value_products(const Weighed& w, size_t columns) {
    constexpr int R = 2;
    size_t c = 0;
    for (; c + R * L::kLanes <= columns; c += R * L::kLanes) value_columns<T, R, Masked>(w, columns, c);
    if constexpr (R * L::kLanes > 16)
      if (c < columns) value_columns<T, 1, Masked>(w, columns, c);
  }

  template <int T, bool Masked>
  static TALLY_INLINE void keys(const Tile& tile, const Meeting<GroupView>& at, Unit& unit) {
    unit.template begin<T, Masked>(tile, *at.g, at.row);
    key_products<T>(tile, *at.g, at.ahead, at.row, unit.chunks, unit.m);
  }
  template <int T, bool Masked>
  static TALLY_INLINE void scores(const Tile& tile, const Meeting<GroupView>& at, Unit& unit) {
    if (tile.args->alibi != nullptr) set_distances<T>(tile, *at.g, at.row, unit.m);
    __m256 folded[T];
    unrolled<T>([&](auto t)
                    __attribute__((always_inline)) { folded[t] = score_row<Masked>(tile, t, unit.m); });
    store_maxima<T>(folded, unit.m.group_max);
  }
  template <int T, bool Masked>
  static TALLY_INLINE void weights(const Tile& tile, const Meeting<GroupView>& at, Unit& unit) {
    store_exponents_of<L, T, Masked>(unit.m);
    join_group<T>(tile, at.row, unit.m);
  }
  template <int T, bool Masked>
  static TALLY_INLINE void values(const Tile& tile, const Meeting<GroupView>& at, Unit& unit) {
    const Micro& m = unit.m;
    const size_t columns = tile.layout->value_columns;
    Weighed w{
        at.g, &at.ahead, &m, {0, static_cast<int>(kGroupTokens)}, tile.memory.span_out + at.row * columns};
    if constexpr (Masked) {
      for (int t = 0; t < T; ++t) {
        w.common.begin = m.seen[t].begin > w.common.begin ? m.seen[t].begin : w.common.begin;
        w.common.end = m.seen[t].end < w.common.end ? m.seen[t].end : w.common.end;
      }
      if (w.common.end < w.common.begin) w.common.end = w.common.begin;
    }
    value_products<T, Masked>(w, columns);
  }

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
  static void groups(const Tile& tile, const GroupView* g, size_t n, RowRange rows) {
    meet_groups<FloatRows>(tile, g, g + n, n, rows);
  }
};

}  // namespace
}  // namespace tally::kernels::attention
