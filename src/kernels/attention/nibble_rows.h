#pragma once
// Nibbles: K, V or both in groups of 32 columns that share a step and a low. What is the same for all tiers:
//   scales  of a group of 64 positions as f32, once for all rows of a tile
//   q.k     lanes = positions, steps = 4 columns, as for int8: a 64-byte line of nibbles has two steps. A dot
//           product of 32 columns by vpmaddubsw stays within 16 bits (8 * 2 * 15 * 127), so it takes two
//           operations a step and is widened once; or by vpdpbusd. Then two fma a position: the step times
//           the dot product, the low times the sum of the query's 32 values
//   p.v     what the 32 columns weigh (w = e * step, and the sum of e * low) is made for all rows of a micro
//           tile before the columns are passed over (nibble_pairs.h, nibble_planes.h)

#include "kernels/attention/int8_rows.h"

namespace tally::kernels::attention {
namespace {

constexpr size_t kNibbleGroupsMax = kDimMax / kNibbles;

// Steps and lows of a group of positions.
struct alignas(64) UnpackedScales {
  float step[kNibbleGroupsMax][kGroupTokens], low[kNibbleGroupsMax][kGroupTokens];
};

// A group, and what was unpacked of it.
struct NibbleView : GroupView {
  const UnpackedScales *key_scales, *value_scales;
  const GroupView* next;  // whose scales are asked for while this group's values are consumed
};

// Sixteen tokens' pairs.
inline TALLY_INLINE void unpack_scales(const float* pairs, float* step, float* low) {
  const __m256i a = _mm256_load_si256(reinterpret_cast<const __m256i*>(pairs));
  const __m256i b = _mm256_load_si256(reinterpret_cast<const __m256i*>(pairs + 8));
  const auto put = [](__m256i x, __m256i y, float* to) __attribute__((always_inline)) {
    const __m256i halves = _mm256_permute4x64_epi64(_mm256_packus_epi32(x, y), 0xD8);
    _mm256_store_ps(to, _mm256_cvtph_ps(_mm256_castsi256_si128(halves)));
    _mm256_store_ps(to + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1)));
  };
  const __m256i half = _mm256_set1_epi32(0xFFFF);
  put(_mm256_and_si256(a, half), _mm256_and_si256(b, half), step);
  put(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16), low);
}

// Zeros for the positions that none of the rows sees: they may be NaN.
inline void unpack_scales(const Tile& tile, const GroupView& g, const float* const* chunks, size_t columns,
                          RowRange rows, UnpackedScales& out) {
  const auto begin = static_cast<size_t>(visible_in(tile, rows.begin, g.position).begin);
  const auto end = static_cast<size_t>(visible_in(tile, rows.end - 1, g.position).end);
  for (size_t i = 0; i < columns / kNibbles; ++i) {
    for (size_t chunk = 0; chunk < kGroupChunks; ++chunk)
      unpack_scales(chunks[chunk] + i * tile.layout->block_tokens, out.step[i] + chunk * kChunkTokens,
                    out.low[i] + chunk * kChunkTokens);
    for (size_t j = 0; j < begin; ++j) out.step[i][j] = out.low[i][j] = 0;
    for (size_t j = end; j < kGroupTokens; ++j) out.step[i][j] = out.low[i][j] = 0;
  }
}

template <class L>
constexpr bool kHasDpbusd = requires(typename L::I i) { L::dpbusd(i, i, i); };

// sum + the products of 4 nibbles a lane with 4 values, in 16-bit pairs or not; and the lanes' sums.
template <class L>
inline TALLY_INLINE typename L::I add_nibble_products(typename L::I sum, typename L::I u, typename L::I s) {
  if constexpr (kHasDpbusd<L>)
    return L::dpbusd(sum, u, s);
  else
    return L::add_16(sum, L::maddubs(u, s));
}
template <class L>
inline TALLY_INLINE typename L::I nibble_sums(typename L::I sum) {
  if constexpr (kHasDpbusd<L>)
    return sum;
  else
    return L::madd(sum, L::set_16(1));
}

// Where a row's query is: q8, and behind it the sums of each 32 of them.
struct NibbleQuery {
  int8_t* q8;
  float* sums;
};
inline TALLY_INLINE NibbleQuery nibble_query(const Tile& tile, size_t row) {
  const size_t columns = tile.layout->key_columns;
  std::byte* at = tile.memory.q + 2 * row * columns;
  return {reinterpret_cast<int8_t*>(at), reinterpret_cast<float*>(at + columns)};
}

template <class L>
struct NibbleKeys {
  static constexpr size_t kStep = 32;  // bytes of a group for each column
  using I = typename L::I;
  using F = typename L::F;
  static constexpr int kChunkRegisters = 16 / L::kLanes;

  template <int T>
  static __attribute__((noinline)) void products(const Tile& tile, const NibbleView& g, const Ahead& ahead,
                                                 size_t row, Chunks chunks, Micro& m) {
    constexpr int R = L::kKeyChunks * kChunkRegisters;
    constexpr size_t kLines = kNibbles / 8;  // of a group of columns
    const size_t columns = tile.layout->key_columns, row_bytes = 2 * columns, value_step = ahead.value_step;
    const NibbleQuery query = nibble_query(tile, row);
    for (size_t chunk = key_begin<L>(chunks); chunk < chunks.end; chunk += L::kKeyChunks) {
      float* const s = m.s[0] + chunk * kChunkTokens;
      unrolled<T>([&](auto t) __attribute__((always_inline)) {
        unrolled<R>([&](auto i) __attribute__((always_inline)) {
          L::store(s + kGroupTokens * t + L::kLanes * i, L::zero());
        });
      });
      for (size_t group = 0; group < columns / kNibbles; ++group) {
        I acc[T][R];
        unrolled<T>([&](auto t) __attribute__((always_inline)) {
          unrolled<R>([&](auto i) __attribute__((always_inline)) { acc[t][i] = L::set_i(0); });
        });
        // Low nibbles, then high ones of the same bytes: both at once would not leave registers for acc.
        for (size_t line = group * kLines; line < (group + 1) * kLines; ++line)
          unrolled<2>([&](auto half) __attribute__((always_inline)) {
            I k[R];
            unrolled<R>([&](auto i) __attribute__((always_inline)) {
              const std::byte* at = g.key[chunk + i / kChunkRegisters] + 64 * line;
              const I bytes = L::load_i(at + 4 * L::kLanes * (i % kChunkRegisters));
              k[i] = half == 0 ? L::low_nibbles(bytes) : L::high_nibbles(bytes);
              L::pin(k[i]);
            });
            if constexpr (half == 0)
              unrolled<L::kKeyChunks>([&](auto i) __attribute__((always_inline)) {
                prefetch(ahead.value[chunk + i] + value_step * line);
              });
            unrolled<T>([&](auto t) __attribute__((always_inline)) {
              const I four = L::broadcast(query.q8 + t * row_bytes + 8 * line + 4 * half);
              unrolled<R>([&](auto i) __attribute__((always_inline)) {
                acc[t][i] = add_nibble_products<L>(acc[t][i], k[i], four);
                L::pin(acc[t][i]);
              });
            });
          });
        const float* step = g.key_scales->step[group] + chunk * kChunkTokens;
        const float* low = g.key_scales->low[group] + chunk * kChunkTokens;
        unrolled<T>([&](auto t) __attribute__((always_inline)) {
          const F sum = L::set(query.sums[t * (row_bytes / sizeof(float)) + group]);
          unrolled<R>([&](auto i) __attribute__((always_inline)) {
            float* to = s + kGroupTokens * t + L::kLanes * i;
            const F x =
                L::fma(L::load(step + L::kLanes * i), L::to_float(nibble_sums<L>(acc[t][i])), L::load(to));
            L::store(to, L::fma(L::load(low + L::kLanes * i), sum, x));
          });
        });
      }
    }
  }

  // Products of row t (in m.s) to scores; returns their max over registers.
  template <bool Masked>
  static __attribute__((noinline)) __m256 score_row(const Tile& tile, const NibbleView&, size_t row, int t,
                                                    Micro& m) {
    constexpr int kN = kRowRegisters<L>;
    const F scale = L::set(tile.memory.q_scale[row + static_cast<size_t>(t)]);
    F s[kN];
    unrolled<kN>([&](auto i) __attribute__((always_inline)) {
      s[i] = L::mul(L::load(m.s[t] + L::kLanes * i), scale);
    });
    return finish_scores<L, Masked>(tile, m, t, s);
  }

  static void unpack(const Tile& tile, const GroupView& g, RowRange rows, UnpackedScales& out) {
    unpack_scales(tile, g, g.key_scale, tile.layout->key_columns, rows, out);
  }

  static bool prepare(const Tile& tile, size_t row, float* q) {
    const NibbleQuery to = nibble_query(tile, row);
    if (!quantize_query(tile, row, q, to.q8)) return false;
    for (size_t group = 0; group < tile.layout->key_columns / kNibbles; ++group) {
      int32_t sum = 0;
      for (size_t c = 0; c < kNibbles; ++c) sum += to.q8[group * kNibbles + c];
      to.sums[group] = static_cast<float>(sum);
    }
    return true;
  }
  static void clear(const Tile& tile, size_t row) {
    const NibbleQuery to = nibble_query(tile, row);
    for (size_t c = 0; c < tile.layout->key_columns; ++c) to.q8[c] = 0;
    for (size_t group = 0; group < tile.layout->key_columns / kNibbles; ++group) to.sums[group] = 0;
    clear_query(tile, row);
  }
};

// int8 keys before nibble values: Rows is Int8Pairs or Int8Planes.
template <class L, class Rows>
struct Int8Keys {
  static constexpr size_t kStep = Rows::kKeyStep;
  template <int T>
  static TALLY_INLINE void products(const Tile& tile, const NibbleView& g, const Ahead& ahead, size_t row,
                                    Chunks chunks, Micro& m) {
    Rows::template key_products<T>(tile, g, ahead, row, chunks, m);
  }
  template <bool Masked>
  static TALLY_INLINE __m256 score_row(const Tile& tile, const NibbleView& g, size_t row, int t, Micro& m) {
    return attention::score_row<L, Masked>(tile, g, row, t, m);
  }
  static void unpack(const Tile&, const GroupView&, RowRange, UnpackedScales&) {}
  static bool prepare(const Tile& tile, size_t row, float* q) { return Rows::prepare(tile, row, q); }
  static void clear(const Tile& tile, size_t row) { Rows::clear(tile, row); }
};

// What 32 columns weigh for up to 4 rows: w = e * step is made again where it is packed.
struct alignas(16) NibbleWeights {
  float factors[kMicroRows];  // w to p
  float units[kMicroRows];    // sums of p v to what is added to O
  float lows[kMicroRows];     // what every column adds to O besides
};

// tree_dot() but for the last three steps.
template <class L>
inline TALLY_INLINE __m256 fold_products(const float* e, const float* x) {
  constexpr int kN = 16 / L::kLanes;
  typename L::F part[kN];
  unrolled<kN>([&](auto i) __attribute__((always_inline)) {
    part[i] = L::mul(L::load(e + L::kLanes * i), L::load(x + L::kLanes * i));
  });
  unrolled<3>([&](auto chunk) __attribute__((always_inline)) {
    unrolled<kN>([&](auto i) __attribute__((always_inline)) {
      constexpr int kAt = 16 * (chunk + 1) + L::kLanes * i;
      part[i] = L::fma(L::load(e + kAt), L::load(x + kAt), part[i]);
    });
  });
  return L::fold_16(part);
}

// From exponents (in m.s) of T rows.
template <class L, int T>
inline TALLY_INLINE void weigh_columns(const UnpackedScales& scales, size_t group, Micro& m,
                                       NibbleWeights& w) {
  const float *step = scales.step[group], *low = scales.low[group];
  __m256 max[T], sum[T];
  unrolled<T>([&](auto t) __attribute__((always_inline)) {
    auto most = L::set(kWeightMin);
    unrolled<kRowRegisters<L>>([&](auto i) __attribute__((always_inline)) {
      most = L::max(L::mul(L::load(m.s[t] + L::kLanes * i), L::load(step + L::kLanes * i)), most);
    });
    max[t] = L::fold_max(most);
    sum[t] = fold_products<L>(m.s[t], low);
  });
  store_maxima<T>(max, m.weight_max);
  store_sums<T>(sum, w.lows);
  _mm_store_ps(w.lows, _mm_mul_ps(_mm_load_ps(w.lows), _mm_load_ps(m.add)));
  weight_factors(m, w.factors);
  value_units(m, w.units);
}

// Adds the sums of R registers of columns, from column c on, 16 apart, to O of T rows.
template <class L, int T, int R>
inline TALLY_INLINE void add_sums(const Micro& m, const NibbleWeights& w, typename L::I (&sums)[T][R],
                                  float* out, size_t columns) {
  unrolled<T>([&](auto t) __attribute__((always_inline)) {
    const auto keep = L::set(m.keep[t]), unit = L::set(w.units[t]), low = L::set(w.lows[t]);
    unrolled<R>([&](auto i) __attribute__((always_inline)) {
      float* to = out + t * columns + 16 * i;
      L::store(to, L::fma(L::load(to), keep, L::fma(L::to_float(sums[t][i]), unit, low)));
    });
  });
}

// The lines of scales of a group of columns: a chunk's are one line. Inlined, for gcc takes a function that
// only prefetches for one that does nothing.
inline TALLY_INLINE void prefetch_pairs(const float* const* chunks, size_t offset) {
  unrolled<kGroupChunks>([&](auto i) __attribute__((always_inline)) {
    prefetch(reinterpret_cast<const std::byte*>(chunks[i] + offset));
  });
}

// What adding 32 columns to O reads; Packed: p of the rows.
template <class Packed>
struct NibbleWeighed {
  const NibbleView& g;
  const Ahead& ahead;
  const Micro& m;
  Chunks chunks;
  float* out;  // [T][columns]
  size_t columns, group = 0;
  NibbleWeights weights;
  Packed packed;
};

// Values offers Packed, pack_row(e, step, factor, packed, t), which makes p of row t from w = e * step, and
// add_group<T>(weighed).
template <class L, class Keys, class Values>
struct NibbleRows {
  static constexpr size_t kKeyStep = Keys::kStep, kValueStep = 32 * 64 / Keys::kStep;

  using Unit = MicroUnit;

  template <int T, bool Masked>
  static TALLY_INLINE void keys(const Tile& tile, const Meeting<NibbleView>& at, Unit& unit) {
    unit.template begin<T, Masked>(tile, *at.g, at.row);
    Keys::template products<T>(tile, *at.g, at.ahead, at.row, unit.chunks, unit.m);
  }
  template <int T, bool Masked>
  static TALLY_INLINE void scores(const Tile& tile, const Meeting<NibbleView>& at, Unit& unit) {
    if (tile.args->alibi != nullptr) set_distances<T>(tile, *at.g, at.row, unit.m);
    __m256 folded[T];
    unrolled<T>([&](auto t) __attribute__((always_inline)) {
      folded[t] = Keys::template score_row<Masked>(tile, *at.g, at.row, t, unit.m);
    });
    store_maxima<T>(folded, unit.m.group_max);
  }
  template <int T, bool Masked>
  static TALLY_INLINE void weights(const Tile& tile, const Meeting<NibbleView>& at, Unit& unit) {
    store_exponents_of<L, T, Masked>(unit.m);
    join_group<T>(tile, at.row, unit.m);
  }
  using Weighed = NibbleWeighed<typename Values::Packed>;

  // Makes what a group of columns weighs.
  template <int T>
  static TALLY_INLINE void weigh(const Tile& tile, size_t group, Micro& m, Weighed& w) {
    const float* step = w.g.value_scales->step[group];
    w.group = group;
    prefetch_pairs(w.g.next->key_scale, group * tile.layout->block_tokens);
    prefetch_pairs(w.g.next->value_scale, group * tile.layout->block_tokens);
    weigh_columns<L, T>(*w.g.value_scales, group, m, w.weights);
    for (int t = 0; t < T; ++t) Values::pack_row(m.s[t], step, w.weights.factors[t], w.packed, t);
  }
  template <int T>
  static __attribute__((noinline)) void value_products(const Tile& tile, const Meeting<NibbleView>& at,
                                                       Unit& unit) {
    const size_t columns = tile.layout->value_columns;
    float* out = tile.memory.span_out + at.row * columns;
    Weighed w{*at.g, at.ahead, unit.m, unit.chunks, out, columns, 0, {}, {}};
    for (size_t group = 0; group < columns / kNibbles; ++group) {
      weigh<T>(tile, group, unit.m, w);
      Values::template add_group<T>(w);
    }
  }
  template <int T, bool Masked>
  static TALLY_INLINE void values(const Tile& tile, const Meeting<NibbleView>& at, Unit& unit) {
    value_products<T>(tile, at, unit);
  }

  static bool prepare(const Tile& tile, size_t row, float* q) { return Keys::prepare(tile, row, q); }
  static void clear(const Tile& tile, size_t row) { Keys::clear(tile, row); }
  static void rotate_back(const Tile& tile, float* out) {
    rotate_lanes(out, tile.layout->value_dim, tile.layout->value_columns);
  }
  static void groups(const Tile& tile, const GroupView* g, size_t n, RowRange rows) {
    if (rows.begin == rows.end) return;
    UnpackedScales of_keys[kGroupsTogether], of_values[kGroupsTogether];
    NibbleView views[kGroupsTogether];
    for (size_t i = 0; i < n; ++i) {
      Keys::unpack(tile, g[i], rows, of_keys[i]);
      unpack_scales(tile, g[i], g[i].value_scale, tile.layout->value_columns, rows, of_values[i]);
      views[i] = {g[i], of_keys + i, of_values + i, g + n + i};
    }
    meet_groups<NibbleRows>(tile, views, g + n, n, rows);
  }
};

}  // namespace
}  // namespace tally::kernels::attention
