#pragma once
// Q4_K: 256 codes of 4 bits, 8 sub-blocks of 32 with a 6-bit scale and minimum each, one f16 d and dmin.
// Private to the room.
//
// Packed unit: 16 rows x 256 k, 2496 bytes; units lie as [32-row group][block][rows 0..15, rows 16..31].
//   256 b    nibbles of sub-block b, b in 0..7 (super_block/nibbles.h)
//   kD       f16 d[16]
//   kMinD    f16 dmin[16]
//   kScale   u8 scale[8][16]                        0..63
//   kMin     s16 min[4][16][2], pair (min of sub-block 2 j, 2 j + 1), 0..63
// Arithmetic of a block: isum = sum_b scale_b * sum_k code * q, msum = sum_b min_b * sum32_b, both exact
// (isum <= 30.7 M, msum <= 2.0 M), then
//   acc = fma(f32(isum), d * da, acc);  acc = fma(-f32(msum), dmin * da, acc)
// Source: ggml-common.h (block_q4_K).

#include "kernels/kernels.h"

#include <cstddef>

namespace tally::kernels {

struct Q4KUnit {
  static constexpr size_t kSubBlock = 256;  // bytes from one sub-block's codes to the next
  static constexpr size_t kD = 2048, kMinD = 2080, kScale = 2112, kMin = 2240, kBytes = 2496;
};

void q4k_amx(const LinearArgs& args);
void q4k_avx512vnni(const LinearArgs& args);
void q4k_avx512(const LinearArgs& args);
void q4k_avxvnni(const LinearArgs& args);
void q4k_avx2(const LinearArgs& args);
void q4k_scalar(const LinearArgs& args);

}  // namespace tally::kernels
