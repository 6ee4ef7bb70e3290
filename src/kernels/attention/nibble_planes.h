#pragma once
// Nibble values by vpdpbusd: p in two unsigned planes, as in int8_planes.h, and nibbles as signed bytes.
// Tile: 4 rows x 2 registers of columns x 2 planes with 32 registers (16 accumulators), 4 rows x 1 x 2
// with 16.

#include "kernels/attention/int8_planes.h"
#include "kernels/attention/nibble_rows.h"

namespace tally::kernels::attention {
namespace {

template <class L>
struct NibblePlanes {
  using I = typename L::I;
  static constexpr int kRegisters = L::kLanes == 16 ? 2 : 1;        // of columns, in a pass
  static constexpr int kPasses = 32 / (L::kLanes * kRegisters);     // over a group of columns
  static constexpr int kLines = kRegisters * L::kLanes / 16;        // of K that a step makes room for
  static constexpr int kLineShare = 16 / (kRegisters * L::kLanes);  // steps that make room for one, else

  using Packed = Planes<kMicroRows>;
  using Weighed = NibbleWeighed<Packed>;

  static TALLY_INLINE void pack_row(const float* e, const float* step, float factor, Packed& packed, int t) {
    pack_plane_row<L>(
        [&](auto i) __attribute__((always_inline)) {
          return L::mul(L::load(e + L::kLanes * i), L::load(step + L::kLanes * i));
        },
        factor, packed.high[t], packed.low[t]);
  }

  // The first of the registers holds columns `lane` .. of the group, in low nibbles, or `16 + lane` .. in
  // high ones; where there are two, the second is the high nibbles of the same bytes.
  template <int T, bool High>
  static TALLY_INLINE void add_columns(const Weighed& w, size_t c) {
    constexpr int R = kRegisters;
    const size_t key_step = w.ahead.key_step, group = c / kNibbles, lane = c % 16;
    const std::byte* line = w.ahead.key_line(key_step * c);
    I high[T][R], low[T][R];
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      unrolled<R>([&](auto i) __attribute__((always_inline)) { high[t][i] = low[t][i] = L::set_i(0); });
    });
    for (size_t chunk = w.chunks.begin; chunk < w.chunks.end; ++chunk) {
      const std::byte* x = w.g.value[chunk] + 64 * group + 4 * lane;
      for (size_t j = chunk * kChunkTokens; j < (chunk + 1) * kChunkTokens; j += 4, x += 2 * w.columns) {
        const I bytes = L::load_i(x);
        I v[R];
        v[0] = High ? L::high_nibbles(bytes) : L::low_nibbles(bytes);
        if constexpr (R == 2) v[1] = L::high_nibbles(bytes);
        if constexpr (kLines > 0) {
          unrolled<kLines>([&](auto i) __attribute__((always_inline)) { prefetch(line + key_step * i); });
          line += key_step * kLines;
        } else {
          prefetch(line);
          line += key_step / kLineShare;
        }
        unrolled<T>([&](auto t) __attribute__((always_inline)) {
          const I ph = L::broadcast(w.packed.high[t] + j), pl = L::broadcast(w.packed.low[t] + j);
          unrolled<R>([&](auto i) __attribute__((always_inline)) {
            high[t][i] = L::dpbusd(high[t][i], ph, v[i]);
            low[t][i] = L::dpbusd(low[t][i], pl, v[i]);
            L::pin(high[t][i]), L::pin(low[t][i]);
          });
        });
      }
    }
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      unrolled<R>([&](auto i) __attribute__((always_inline)) {
        low[t][i] = L::add_i(L::template shl_i<7>(high[t][i]), low[t][i]);
      });
    });
    add_sums<L, T, R>(w.m, w.weights, low, w.out + c, w.columns);
  }

  // The 32 columns of w.group.
  template <int T>
  static TALLY_INLINE void add_group(const Weighed& w) {
    unrolled<kPasses>([&](auto pass) __attribute__((always_inline)) {
      constexpr int kAt = pass * L::kLanes;  // columns of low nibbles come first
      add_columns<T, (kAt >= 16)>(w, w.group * kNibbles + kAt);
    });
  }
};

}  // namespace
}  // namespace tally::kernels::attention
