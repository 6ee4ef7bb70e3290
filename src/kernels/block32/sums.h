#pragma once
// A tile of 32 rows x up to 16 tokens in lanes: its f32 accumulators, which live in L1, a slice of kRows rows
// after the other. Internal linkage: see panel.h. Include lanes256.h or lanes512.h first.

#include "kernels/linear_loop.h"

namespace TALLY_KERNELS_TIER {
namespace {

using F = Lanes::F;
using Sums = F[kPanelTile];  // of a slice, one a token

constexpr size_t kSlices = kGroupRows / Lanes::kRows;

TALLY_INLINE inline void clear_tile(size_t tokens, Sums (&sums)[kSlices]) {
  for (Sums& slice : sums)
    for (size_t t = 0; t < tokens; ++t) slice[t] = Lanes::zero_f();
}

// Rows that do not exist are left alone.
TALLY_INLINE inline void store_tile(const TileArgs& a, const Sums (&sums)[kSlices]) {
  for (size_t s = 0; s < kSlices && s * Lanes::kRows < a.rows; ++s) {
    float* out = a.out + s * Lanes::kRows;
#pragma GCC unroll 1
    for (size_t t = 0; t < a.tile.tokens; ++t, out += a.out_stride)
      Lanes::write(out, sums[s][t], a.rows - s * Lanes::kRows, a.stream);
  }
}

TALLY_INLINE inline void prefetch(const uint8_t* p, size_t bytes) {
  for (size_t line = 0; line < bytes; line += 64)
    _mm_prefetch(reinterpret_cast<const char*>(p + line), _MM_HINT_T0);
}

}  // namespace
}  // namespace TALLY_KERNELS_TIER
