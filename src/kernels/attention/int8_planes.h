#pragma once
// int8 by vpdpbusd. k + 128 is the unsigned operand as it lies in memory: dots start from -128 * sum(q). p
// has 15 bits and goes as two unsigned planes, p = 128 * high + low, whose sums are joined as integers.
//   q.k  lanes = positions, steps = 4 columns. 4 rows x 64 positions with 32 registers (16 accumulators, 4 of
//        keys, one of broadcasts); 4 rows x 16 positions with 16
//   p.v  lanes = columns, steps = 4 positions. 4 rows x 2 registers x 2 planes with 32 registers (16
//        accumulators, 2 of values, 2 of broadcasts); 4 rows x 1 register x 2 planes with 16
// L is Lanes256 or Lanes512 with dpbusd().

#include "kernels/attention/int8_rows.h"

namespace tally::kernels::attention {
namespace {

// The two planes of weights: 64 positions a row, kRows rows apart from each other by 64 bytes.
template <int kRows>
struct alignas(64) Planes {
  uint8_t high[kRows][kGroupTokens], low[kRows][kGroupTokens];
};

// One row's weights to its planes: weight(i) is w of register i.
template <class L, class Weight>
inline TALLY_INLINE void pack_plane_row(Weight weight, float factor, uint8_t* high, uint8_t* low) {
  const auto r = L::set(factor);
  unrolled<kRowRegisters<L> / 4>([&](auto four) __attribute__((always_inline)) {
    const auto words = [&](auto i) __attribute__((always_inline)) {
      return L::pack_words(L::rounded(L::mul(weight(i), r)),
                           L::rounded(L::mul(weight(std::integral_constant<int, i + 1>{}), r)));
    };
    const auto a = words(std::integral_constant<int, 4 * four>{});
    const auto b = words(std::integral_constant<int, 4 * four + 2>{});
    const auto seven = L::set_16(127);
    L::put_bytes(high + 4 * L::kLanes * four, L::template shr_16<7>(a), L::template shr_16<7>(b));
    L::put_bytes(low + 4 * L::kLanes * four, L::and_i(a, seven), L::and_i(b, seven));
  });
}

// w (in m.s) to the planes of `rows` rows.
template <class L>
inline void pack_planes(const Micro& m, int rows, uint8_t (*high)[kGroupTokens],
                        uint8_t (*low)[kGroupTokens]) {
  alignas(16) float factors[kMicroRows];
  weight_factors(m, factors);
  for (int t = 0; t < rows; ++t)
    pack_plane_row<L>([&](auto i) __attribute__((always_inline)) { return L::load(m.s[t] + L::kLanes * i); },
                      factors[t], high[t], low[t]);
}

template <class L>
struct Int8Planes {
  using I = typename L::I;
  static constexpr size_t kKeyStep = 64, kValueStep = 64;
  static constexpr int kChunkRegisters = 16 / L::kLanes;

  template <int T>
  static __attribute__((noinline)) void key_products(const Tile& tile, const GroupView& g, const Ahead& ahead,
                                                     size_t row, Chunks chunks, Micro& m) {
    constexpr int R = L::kKeyChunks * kChunkRegisters;
    const size_t columns = tile.layout->key_columns;
    const auto* q = reinterpret_cast<const int8_t*>(tile.memory.q) + row * columns;
    for (size_t chunk = key_begin<L>(chunks); chunk < chunks.end; chunk += L::kKeyChunks) {
      I acc[T][R];
      unrolled<T>([&](auto t) __attribute__((always_inline)) {
        const I start = L::set_i(-128 * tile.memory.q_sum[row + static_cast<size_t>(t)]);
        unrolled<R>([&](auto i) __attribute__((always_inline)) { acc[t][i] = start; });
      });
      for (size_t s = 0; s < columns / 4; ++s) {
        I k[R];
        unrolled<R>([&](auto i) __attribute__((always_inline)) {
          const std::byte* at = g.key[chunk + i / kChunkRegisters] + 64 * s;
          k[i] = L::load_i(at + 4 * L::kLanes * (i % kChunkRegisters));
        });
        unrolled<L::kKeyChunks>([&](auto i) __attribute__((always_inline)) {
          prefetch(ahead.value[chunk + i] + ahead.value_step * s);
        });
        unrolled<T>([&](auto t) __attribute__((always_inline)) {
          const I four = L::broadcast(q + t * columns + 4 * s);
          unrolled<R>([&](auto i) __attribute__((always_inline)) {
            acc[t][i] = L::dpbusd(acc[t][i], k[i], four);
            L::pin(acc[t][i]);
          });
        });
      }
      unrolled<T>([&](auto t) __attribute__((always_inline)) {
        unrolled<R>([&](auto i) __attribute__((always_inline)) {
          L::store_i(m.s[t] + chunk * kChunkTokens + L::kLanes * i, acc[t][i]);
        });
      });
    }
  }

  struct Unit : MicroUnit {
    Planes<kMicroRows> planes;
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
  static TALLY_INLINE void value_columns(const Weighed& w, size_t columns, size_t c) {
    constexpr int kLineSteps =
        64 / (4 * L::kLanes * R) > 1 ? 64 / (4 * L::kLanes * R) : 1;  // that consume a line
    constexpr int kLines = 4 * L::kLanes * R / 64;                    // that a step consumes, else
    const std::byte* line = w.ahead.key_line(64 * c);
    I high[T][R], low[T][R];
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      unrolled<R>([&](auto i) __attribute__((always_inline)) { high[t][i] = low[t][i] = L::set_i(0); });
    });
    for (size_t chunk = w.unit.chunks.begin; chunk < w.unit.chunks.end; ++chunk) {
      const std::byte* x = w.g.value[chunk] + 4 * c;
      for (size_t j = chunk * kChunkTokens; j < (chunk + 1) * kChunkTokens; j += 4, x += 4 * columns) {
        I v[R];
        unrolled<R>([&](auto i) __attribute__((always_inline)) { v[i] = L::load_i(x + 4 * L::kLanes * i); });
        if constexpr (kLines > 0) {
          unrolled<kLines>([&](auto i) __attribute__((always_inline)) { prefetch(line + 64 * i); });
          line += 64 * kLines;
        } else {
          prefetch(line);
          line += 64 / kLineSteps;
        }
        unrolled<T>([&](auto t) __attribute__((always_inline)) {
          const I ph = L::broadcast(w.unit.planes.high[t] + j), pl = L::broadcast(w.unit.planes.low[t] + j);
          unrolled<R>([&](auto i) __attribute__((always_inline)) {
            high[t][i] = L::dpbusd(high[t][i], ph, v[i]);
            low[t][i] = L::dpbusd(low[t][i], pl, v[i]);
            L::pin(high[t][i]), L::pin(low[t][i]);
          });
        });
      }
    }
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      const auto keep = L::set(w.unit.m.keep[t]), scale = L::set(w.unit.units[t]);
      unrolled<R>([&](auto i) __attribute__((always_inline)) {
        float* to = w.out + t * columns + c + L::kLanes * i;
        const I sum = L::add_i(L::template shl_i<7>(high[t][i]), low[t][i]);
        L::store(to, L::fma(L::load(to), keep, L::mul(L::to_float(sum), scale)));
      });
    });
  }

  template <int T>
  static __attribute__((noinline)) void value_products(const Weighed& w, size_t columns) {
    constexpr int R = L::kLanes == 16 ? 2 : 1;
    size_t c = 0;
    for (; c + R * L::kLanes <= columns; c += R * L::kLanes) value_columns<T, R>(w, columns, c);
    if constexpr (R * L::kLanes > 16)
      if (c < columns) value_columns<T, 1>(w, columns, c);
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
    pack_planes<L>(unit.m, T, unit.planes.high, unit.planes.low);
    join_group<T>(tile, at.row, unit.m);
    value_units(unit.m, unit.units);
  }
  template <int T, bool Masked>
  static TALLY_INLINE void values(const Tile& tile, const Meeting<GroupView>& at, Unit& unit) {
    const size_t columns = tile.layout->value_columns;
    value_products<T>({unit, *at.g, at.ahead, tile.memory.span_out + at.row * columns}, columns);
  }

  static bool prepare(const Tile& tile, size_t row, float* q) {
    return quantize_query(tile, row, q,
                          reinterpret_cast<int8_t*>(tile.memory.q) + row * tile.layout->key_columns);
  }
  static void clear(const Tile& tile, size_t row) {
    auto* q8 = reinterpret_cast<int8_t*>(tile.memory.q) + row * tile.layout->key_columns;
    for (size_t c = 0; c < tile.layout->key_columns; ++c) q8[c] = 0;
    clear_query(tile, row);
  }
  static void groups(const Tile& tile, const GroupView* g, size_t n, RowRange rows) {
    for (size_t i = 0; i < n; ++i) prefetch_scales(g[n + i]);
    meet_groups<Int8Planes>(tile, g, g + n, n, rows);
  }
};

}  // namespace
}  // namespace tally::kernels::attention
