#pragma once
// The layout of activation panels, read by the linear kernels. Private to the room.
//
// Tokens lie in tiles of 16; a last tile of fewer tokens is as narrow as it needs to be (one token of Q4
// decode is then 40 contiguous bytes a block and the whole panel stays in L1). With T = tokens of the tile:
//   panel = tile 0 | tile 1 | ...        full tiles start on 64 bytes
//   tile  = block 0 | block 1 | ...      a block is 1, 32 or 256 values of k
//   block, kF32:    f32 x[T]
//   block, kInt32:  s8 q[T][32]  | f32 d[T] | s32 sum[T]                            40 T bytes
//   block, kInt256: s8 q[T][256] | f32 d[T] | s16 sum16[T][16] | s16 sum32[T][8]   308 T bytes
// sum = of the block's q; sum16[g], sum32[g] = of q[16 g ..), q[32 g ..) of the block. x is about d * q.
// q is 4-byte aligned, so four values are one 32-bit broadcast; two neighbouring s16 sums are one as well.
//
// Everything here is `static`: ISA files include it, and an inline function shared between ISA objects is a
// weak symbol.

#include "kernels/kernels.h"

#include <cstddef>
#include <cstdint>

namespace tally::kernels {

inline constexpr size_t kPanelTile = 16;

inline constexpr size_t kInt32BlockBytes = 32 + 4 + 4;  // a token and block
inline constexpr size_t kInt256BlockBytes = 256 + 4 + 32 + 16;

// One block of a tile of `tokens` tokens.
struct Int32Block {
  const int8_t* q;     // [tokens][32]
  const float* d;      // [tokens]
  const int32_t* sum;  // [tokens]
};
struct Int256Block {
  const int8_t* q;       // [tokens][256]
  const float* d;        // [tokens]
  const int16_t* sum16;  // [tokens][16]
  const int16_t* sum32;  // [tokens][8]
};

// `tile` points at the tile's first byte.
static inline Int32Block int32_block(const std::byte* tile, size_t tokens, size_t block) {
  const std::byte* p = tile + block * tokens * kInt32BlockBytes;
  return {reinterpret_cast<const int8_t*>(p), reinterpret_cast<const float*>(p + 32 * tokens),
          reinterpret_cast<const int32_t*>(p + 36 * tokens)};
}
static inline Int256Block int256_block(const std::byte* tile, size_t tokens, size_t block) {
  const std::byte* p = tile + block * tokens * kInt256BlockBytes;
  return {reinterpret_cast<const int8_t*>(p), reinterpret_cast<const float*>(p + 256 * tokens),
          reinterpret_cast<const int16_t*>(p + 260 * tokens),
          reinterpret_cast<const int16_t*>(p + 292 * tokens)};
}
static inline const float* f32_row(const std::byte* tile, size_t tokens, size_t k) {
  return reinterpret_cast<const float*>(tile) + k * tokens;
}

// The tile that holds `token`: its first byte and its number of tokens.
struct PanelTile {
  const std::byte* bytes;
  size_t tokens;
};
// token_bytes: bytes of one token over all of k (4 k, 40 k / 32, 308 k / 256).
static inline PanelTile panel_tile(const std::byte* panel, size_t tokens, size_t token_bytes, size_t tile) {
  const size_t left = tokens - tile * kPanelTile;
  return {panel + tile * kPanelTile * token_bytes, left < kPanelTile ? left : kPanelTile};
}

}  // namespace tally::kernels
