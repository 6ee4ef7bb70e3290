#pragma once
// Nibble values by vpmaddwd, for tiers without vpdpbusd: the loop of int8_pairs.h. A register of 4 positions
// x kLanes bytes holds two registers of columns, 16 apart; each is widened to 16 bits as its even and its odd
// nibbles (at most two operations), and each half meets its pair of p. vpmaddubsw could not take p, which has
// 15 bits. Tile: 4 rows x 2 registers of columns.

#include "kernels/attention/int8_pairs.h"
#include "kernels/attention/nibble_rows.h"

namespace tally::kernels::attention {
namespace {

template <class L>
struct NibblePairs {
  using I = typename L::I;
  static constexpr int kPasses = 16 / L::kLanes;  // over a group of columns
  static constexpr int kSteps = L::kLanes == 8 ? 2 : 1;

  using Packed = Pairs;
  using Weighed = NibbleWeighed<Packed>;

  static TALLY_INLINE void pack_row(const float* e, const float* step, float factor, Packed& packed, int t) {
    pack_pairs(
        [&](auto i) __attribute__((always_inline)) {
          return _mm256_mul_ps(_mm256_load_ps(e + 8 * i), _mm256_load_ps(step + 8 * i));
        },
        factor, packed.p[t]);
  }

  // Registers of columns c and c + 16.
  template <int T>
  static TALLY_INLINE void add_columns(const Weighed& w, size_t c) {
    constexpr int kLines = L::kLanes / 8;
    const size_t stride = 2 * w.columns, key_step = w.ahead.key_step;
    const size_t group = c / kNibbles, lane = c % kNibbles;
    const std::byte* line = w.ahead.key_line(key_step * (group * kNibbles + 2 * lane));
    I acc[T][2];
    unrolled<T>([&](auto t) __attribute__((always_inline)) { acc[t][0] = acc[t][1] = L::set_i(0); });
    for (size_t chunk = w.chunks.begin; chunk < w.chunks.end; ++chunk) {
      const std::byte* x = w.g.value[chunk] + 64 * group + 4 * lane;
      for (size_t s = 0; s < 4; s += kSteps)
        unrolled<kSteps>([&](auto u) __attribute__((always_inline)) {
          const I v = L::load_i(x);
          unrolled<kLines>([&](auto i) __attribute__((always_inline)) { prefetch(line + key_step * i); });
          // Even positions, then odd ones: all at once would not leave registers for acc.
          unrolled<2>([&](auto odd) __attribute__((always_inline)) {
            const int32_t* p = w.packed.p[0] + chunk * 8 + 2 * (s + u) + odd;
            const I x0 = L::template nibble16<2 * odd>(v), x1 = L::template nibble16<2 * odd + 1>(v);
            unrolled<T>([&](auto t) __attribute__((always_inline)) {
              const I two = L::set_i(p[kGroupTokens / 2 * t]);
              acc[t][0] = L::add_i(acc[t][0], L::madd(x0, two));
              acc[t][1] = L::add_i(acc[t][1], L::madd(x1, two));
              L::pin(acc[t][0]), L::pin(acc[t][1]);
            });
          });
          x += stride, line += key_step * kLines;
        });
    }
    add_sums<L, T, 2>(w.m, w.weights, acc, w.out + c, w.columns);
  }

  // The 32 columns of w.group.
  template <int T>
  static TALLY_INLINE void add_group(const Weighed& w) {
    for (size_t pass = 0; pass < kPasses; ++pass) add_columns<T>(w, w.group * kNibbles + pass * L::kLanes);
  }
};

}  // namespace
}  // namespace tally::kernels::attention
