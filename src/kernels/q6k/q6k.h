#pragma once
// Q6_K: 256 codes of 6 bits (value = code - 32), 16 groups of 16 k with an s8 scale each, one f16 d. Private
// to the room.
//
// Packed unit: 16 rows x 256 k, 3360 bytes; units lie as [32-row group][block][rows 0..15, rows 16..31].
//   384 b         nibbles of sub-block b (32 k), b in 0..7 (super_block/nibbles.h)
//   384 b + 256   high bits, 64 bytes for j = 0, 1 and 64 for j = 2, 3: in byte 4 r + i, from bit 0,
//                 bits 4 and 5 of code k = 4 j + i, then of code k = 16 + 4 j + i (even j in bits 0..3, odd j
//                 in bits 4..7)
//   kD            f16 d[16]
//   kScale        s8 scale[16][16], [16-k group][row]
// Arithmetic of a block: isum = sum_g scale_g * (sum_k code * q - 32 * sum16_g), exact (|isum| <= 262 M, and
// so are both parts: sum_g scale_g * sum_k code * q <= 262 M, 32 * sum_g scale_g * sum16_g <= 133 M), then
//   acc = fma(f32(isum), d * da, acc)
// Source: ggml-common.h (block_q6_K).

#include "kernels/kernels.h"

#include <cstddef>

namespace tally::kernels {

struct Q6KUnit {
  static constexpr size_t kSubBlock = 384;  // bytes from one sub-block's codes to the next
  static constexpr size_t kHigh = 256;      // the high bits inside a sub-block
  static constexpr size_t kD = 3072, kScale = 3104, kBytes = 3360;
};

void q6k_amx(const LinearArgs& args);
void q6k_avx512vnni(const LinearArgs& args);
void q6k_avx512(const LinearArgs& args);
void q6k_avxvnni(const LinearArgs& args);
void q6k_avx2(const LinearArgs& args);
void q6k_scalar(const LinearArgs& args);

}  // namespace tally::kernels
