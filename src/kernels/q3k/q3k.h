#pragma once
// Q3_K: 256 codes of 3 bits (value = code - 4), 16 groups of 16 k with a 6-bit scale each, one f16 d. Private
// to the room.
//
// Packed unit: 16 rows x 256 k, 1824 bytes; units lie as [32-row group][block][rows 0..15, rows 16..31].
//   192 b          low two bits of sub-block b (32 k), b in 0..7: a plane a 16-k group (q2k/two_bits.h)
//   192 b + 128    high bits: bit j of byte 4 r + i is bit 2 of code k = 4 j + i of row r, j in 0..7
//   kD             f16 d[16]
//   kScale         s8 scale[16][16], [16-k group][row], -32..31
// Arithmetic of a block: isum = sum_g scale_g * (sum_k code * q - 4 * sum16_g), exact (|isum| <= 4.2 M, the
// sum of products before the offset <= 7.3 M), then
//   acc = fma(f32(isum), d * da, acc)
// Source: ggml-common.h (block_q3_K).

#include "kernels/kernels.h"

#include <cstddef>

namespace tally::kernels {

struct Q3KUnit {
  static constexpr size_t kSubBlock = 192;  // bytes from one sub-block's codes to the next
  static constexpr size_t kHigh = 128;      // the high bits inside a sub-block
  static constexpr size_t kD = 1536, kScale = 1568, kBytes = 1824;
};

void q3k_avx512vnni(const LinearArgs& args);
void q3k_avx512(const LinearArgs& args);
void q3k_avxvnni(const LinearArgs& args);
void q3k_avx2(const LinearArgs& args);
void q3k_scalar(const LinearArgs& args);

}  // namespace tally::kernels
