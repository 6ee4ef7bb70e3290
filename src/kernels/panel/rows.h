#pragma once
// The walk over a panel's rows. Static functions, see panel.h.

#include "kernels/kernels.h"
#include "kernels/panel.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace tally::kernels {

// Exponent bits of infinities and NaNs.
inline constexpr uint32_t kNonfinite = 0x7F800000u;

// Where row t of the panel goes.
struct PanelRow {
  std::byte* tile;
  size_t tokens;  // of the tile
  size_t t;       // in the tile
};

// Calls write(x, row, zero) for each token of the range; zero: the row is not finite, which is noted in
// nonfinite.
template <class Finite, class Write>
static inline void each_panel_row(const PanelArgs& a, size_t token_bytes, Finite finite, Write write) {
  for (size_t t = a.token_begin; t < a.token_end; ++t) {
    const size_t tile = t / kPanelTile;
    const size_t left = a.tokens - tile * kPanelTile;
    const PanelRow row{a.panel + tile * kPanelTile * token_bytes, left < kPanelTile ? left : kPanelTile,
                       t % kPanelTile};
    const float* x = a.x + t * a.x_stride;
    const bool ok = finite(x, a.k);
    if (!ok) a.nonfinite[t] = 1;
    write(x, row, !ok);
  }
}

// Where the block's parts of one token go.
struct Int32Out {
  int8_t* q;
  float* d;
  int32_t* sum;
};
static inline Int32Out int32_out(const PanelRow& row, size_t block) {
  std::byte* p = row.tile + block * row.tokens * kInt32BlockBytes;
  return {reinterpret_cast<int8_t*>(p + 32 * row.t),
          reinterpret_cast<float*>(p + 32 * row.tokens + 4 * row.t),
          reinterpret_cast<int32_t*>(p + 36 * row.tokens + 4 * row.t)};
}
struct Int256Out {
  int8_t* q;
  float* d;
  int16_t* sum16;
  int16_t* sum32;
};
static inline Int256Out int256_out(const PanelRow& row, size_t block) {
  std::byte* p = row.tile + block * row.tokens * kInt256BlockBytes;
  return {reinterpret_cast<int8_t*>(p + 256 * row.t),
          reinterpret_cast<float*>(p + 256 * row.tokens + 4 * row.t),
          reinterpret_cast<int16_t*>(p + 260 * row.tokens + 32 * row.t),
          reinterpret_cast<int16_t*>(p + 292 * row.tokens + 16 * row.t)};
}

}  // namespace tally::kernels
