#pragma once
// The AVX2 loop of the float formats: a tile is 32 rows x up to 16 tokens, one lane a row.
//
// Weights come in slices of k that fit L1 (8 KiB of F32). Under a slice, three tokens at a time fill the
// registers: 12 accumulators, a broadcast activation each and the weights in passing (two tokens where
// widening wants registers of its own); the accumulators then wait in L1 for the next slice. So a row's sum
// is still one chain in ascending k, and weights come from memory once a tile. Static functions, see panel.h.

#include "kernels/block32_avx2.h"

namespace tally::kernels {

inline constexpr size_t kSliceSteps = 64;

// Format: kTokens = at a time; kStep = values of k in one step; kBytes = of 32 rows in a step; load<S>(w, i):
// rows 8 i .. of step value S, as f32.
template <class Format, size_t S, size_t T>
static inline TALLY_INLINE void float_step(const uint8_t* w, const float* x, __m256 (&acc)[kSlices][T]) {
  __m256 a[T];
#pragma GCC unroll 4
  for (size_t t = 0; t < T; ++t) a[t] = _mm256_set1_ps(x[t]);
#pragma GCC unroll 4
  for (size_t i = 0; i < kSlices; ++i) {
    const __m256 wide = Format::template load<S>(w, i);
#pragma GCC unroll 3
    for (size_t t = 0; t < T; ++t) acc[i][t] = _mm256_fmadd_ps(wide, a[t], acc[i][t]);
  }
}

// A slice of k under a panel tile.
struct FloatSlice {
  const uint8_t* w;
  const float* x;  // [values][stride] of the tile
  size_t stride, values;
  Accumulators* sums;  // [kSlices]
};

// The slice for tokens first .. first + T - 1.
template <class Format, size_t T>
static void float_slice(const FloatSlice& slice, size_t first) {
  __m256 acc[kSlices][T];
#pragma GCC unroll 4
  for (size_t i = 0; i < kSlices; ++i)
#pragma GCC unroll 4
    for (size_t t = 0; t < T; ++t) acc[i][t] = slice.sums[i][first + t];
  const uint8_t* w = slice.w;
  const float* x = slice.x + first;
  size_t k = 0;
  for (; k + Format::kStep <= slice.values;
       k += Format::kStep, w += Format::kBytes, x += Format::kStep * slice.stride) {
    for (size_t line = 0; line < Format::kBytes; line += 64)
      _mm_prefetch(w + line + kPrefetchAhead, _MM_HINT_T0);
    float_step<Format, 0, T>(w, x, acc);
    if constexpr (Format::kStep == 2) float_step<Format, 1, T>(w, x + slice.stride, acc);
  }
  if (k < slice.values) float_step<Format, 0, T>(w, x, acc);
#pragma GCC unroll 4
  for (size_t i = 0; i < kSlices; ++i)
#pragma GCC unroll 4
    for (size_t t = 0; t < T; ++t) slice.sums[i][first + t] = acc[i][t];
}

template <class Format>
static void float_tile_avx2(const TileArgs& a) {
  const size_t tokens = a.tile.tokens;
  Accumulators acc[kSlices];
  for (Accumulators& slice : acc)
    for (size_t t = 0; t < tokens; ++t) slice[t] = _mm256_setzero_ps();

  constexpr size_t kValues = kSliceSteps * Format::kStep;
  FloatSlice slice{reinterpret_cast<const uint8_t*>(a.group), nullptr, tokens, 0, acc};
  const size_t parts = (tokens + Format::kTokens - 1) / Format::kTokens;
  for (size_t k = 0; k < a.k; k += kValues, slice.w += kSliceSteps * Format::kBytes) {
    slice.x = f32_row(a.tile.bytes, tokens, k);
    slice.values = a.k - k < kValues ? a.k - k : kValues;
    for (size_t i = 0; i < parts; ++i) {
      const size_t first = part_begin(tokens, parts, i), count = part_begin(tokens, parts, i + 1) - first;
      if constexpr (Format::kTokens == 3)
        if (count == 3) float_slice<Format, 3>(slice, first);
      if (count == 2) float_slice<Format, 2>(slice, first);
      if (count == 1) float_slice<Format, 1>(slice, first);
    }
  }
  for (size_t s = 0; s < kSlices; ++s) store_slice(a, s, acc[s], tokens);
}

template <class Format>
static inline TALLY_INLINE void float_linear_avx2(const LinearArgs& a) {
  const size_t steps = (a.k + Format::kStep - 1) / Format::kStep;
  run_whole_tiles(a, steps * Format::kBytes, a.k * sizeof(float), float_tile_avx2<Format>);
}

}  // namespace tally::kernels
