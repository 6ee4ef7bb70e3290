#pragma once
// Q2_K: 256 codes of 2 bits, 16 groups of 16 k with a 4-bit scale and minimum each, one f16 d and dmin.
// Private to the room.
//
// Packed unit: 16 rows x 256 k, 1344 bytes; units lie as [32-row group][block][rows 0..15, rows 16..31].
//   128 b     codes of sub-block b (32 k), b in 0..7: two planes of 64 bytes, one a 16-k group (two_bits.h)
//   kD        f16 d[16]
//   kMinD     f16 dmin[16]
//   kScale    u8 [16][16], [16-k group][row]: scale in the low half, minimum in the high one, 0..15 each
// Arithmetic of a block: isum = sum_g scale_g * sum_k code * q, msum = sum_g min_g * sum16_g, both exact
// (|isum| <= 1.5 M, |msum| <= 0.5 M), then
//   acc = fma(f32(isum), d * da, acc);  acc = fma(-f32(msum), dmin * da, acc)
// Source: ggml-common.h (block_q2_K).

#include "kernels/kernels.h"

#include <cstddef>

namespace tally::kernels {

struct Q2KUnit {
  static constexpr size_t kSubBlock = 128;  // bytes from one sub-block's codes to the next
  static constexpr size_t kD = 1024, kMinD = 1056, kScale = 1088, kBytes = 1344;
};

void q2k_avx512vnni(const LinearArgs& args);
void q2k_avx512(const LinearArgs& args);
void q2k_avxvnni(const LinearArgs& args);
void q2k_avx2(const LinearArgs& args);
void q2k_scalar(const LinearArgs& args);

}  // namespace tally::kernels
