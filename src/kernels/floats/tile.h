#pragma once
// The loop of the float formats, for every tier: a tile is 32 rows x up to 16 tokens, one lane a row.
//
// Weights come in slices of k that fit L1 (8 KiB of F32). Under a slice, a few tokens at a time fill the
// registers: three with 16 of them (12 accumulators, a broadcast activation each and the weights in passing;
// two where widening wants registers of its own), eight with 32. The accumulators then wait in L1 for the
// next slice. So a row's sum is still one chain in ascending k, and weights come from memory once a tile.
//
// A Format has kStep, the values of k in one step; kBytes, of 32 rows in a step; kWidens; load(w, i, f), a
// step's values of rows kRows * i .. as f32. Internal linkage: see panel.h. Include lanes256.h or lanes512.h
// first.

#include "kernels/block32/sums.h"

namespace TALLY_KERNELS_TIER {
namespace {

constexpr size_t kSliceSteps = 64;

template <class Format>
constexpr size_t kTokens = Lanes::kRows == 16 ? 8
                           : Format::kWidens  ? 2
                                              : 3;

// The first kValues values of a step; x of the step's value i at i * stride.
template <class Format, size_t kValues, size_t T>
TALLY_INLINE inline void float_step(const uint8_t* w, const float* x, size_t stride, F (&acc)[kSlices][T]) {
  F a[kValues][T];
#pragma GCC unroll 2
  for (size_t v = 0; v < kValues; ++v)
#pragma GCC unroll 8
    for (size_t t = 0; t < T; ++t) a[v][t] = Lanes::set_f(x[v * stride + t]);
#pragma GCC unroll 4
  for (size_t i = 0; i < kSlices; ++i) {
    F wide[Format::kStep];
    Format::load(w, i, wide);
#pragma GCC unroll 2
    for (size_t v = 0; v < kValues; ++v)
#pragma GCC unroll 8
      for (size_t t = 0; t < T; ++t) acc[i][t] = Lanes::fma(wide[v], a[v][t], acc[i][t]);
  }
}

// Values of k under a panel tile.
struct FloatSlice {
  const uint8_t* w;
  const float* x;  // [values][stride] of the tile
  size_t stride, values;
  Sums* sums;  // [kSlices]
  size_t prefetch;
};

// The slice for tokens first .. first + T - 1.
template <class Format, size_t T>
void float_slice(const FloatSlice& slice, size_t first) {
  F acc[kSlices][T];
#pragma GCC unroll 4
  for (size_t i = 0; i < kSlices; ++i)
#pragma GCC unroll 8
    for (size_t t = 0; t < T; ++t) acc[i][t] = slice.sums[i][first + t];
  const uint8_t* w = slice.w;
  const float* x = slice.x + first;
  size_t k = 0;
  for (; k + Format::kStep <= slice.values;
       k += Format::kStep, w += Format::kBytes, x += Format::kStep * slice.stride) {
    prefetch(w + slice.prefetch, Format::kBytes);
    float_step<Format, Format::kStep, T>(w, x, slice.stride, acc);
  }
  if (k < slice.values) float_step<Format, 1, T>(w, x, slice.stride, acc);
#pragma GCC unroll 4
  for (size_t i = 0; i < kSlices; ++i)
#pragma GCC unroll 8
    for (size_t t = 0; t < T; ++t) slice.sums[i][first + t] = acc[i][t];
}

template <class Format, size_t T = kTokens<Format>>
void float_tokens(const FloatSlice& slice, size_t first, size_t count) {
  if (count == T) return float_slice<Format, T>(slice, first);
  if constexpr (T > 1) float_tokens<Format, T - 1>(slice, first, count);
}

template <class Format>
void float_tile(const TileArgs& a) {
  const size_t tokens = a.tile.tokens;
  Sums sums[kSlices];
  clear_tile(tokens, sums);
  constexpr size_t kValues = kSliceSteps * Format::kStep;
  FloatSlice slice{reinterpret_cast<const uint8_t*>(a.group), nullptr, tokens, 0, sums, a.prefetch};
  const size_t parts = (tokens + kTokens<Format> - 1) / kTokens<Format>;
  for (size_t k = 0; k < a.k; k += kValues, slice.w += kSliceSteps * Format::kBytes) {
    slice.x = f32_row(a.tile.bytes, tokens, k);
    slice.values = a.k - k < kValues ? a.k - k : kValues;
    for (size_t i = 0; i < parts; ++i) {
      const size_t first = part_begin(tokens, parts, i);
      float_tokens<Format>(slice, first, part_begin(tokens, parts, i + 1) - first);
    }
  }
  store_tile(a, sums);
}

template <class Format>
void linear_floats(const LinearArgs& a) {
  const size_t steps = (a.k + Format::kStep - 1) / Format::kStep;
  run_tiles(a, {steps * Format::kBytes, a.k * sizeof(float), float_tile<Format>, 1});
}

}  // namespace
}  // namespace TALLY_KERNELS_TIER
