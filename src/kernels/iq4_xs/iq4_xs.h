#pragma once
// IQ4_XS: 256 codes of 4 bits into the table of IQ4_NL, 8 sub-blocks of 32 with a 6-bit scale each, one f16
// d. Private to the room.
//
// Packed unit: 16 rows x 256 k, 2208 bytes; units lie as [32-row group][block][rows 0..15, rows 16..31].
//   256 b     nibbles of sub-block b, b in 0..7 (super_block/nibbles.h)
//   kD        f16 d[16]
//   kScale    s8 scale[8][16], -32..31
// Arithmetic of a block: isum = sum_b scale_b * sum_k value * q, exact (|isum| <= 132 M; with codes value +
// 128 = 16 h + l every part stays below 2^31: 16 sum_b scale_b * sum_k h * q <= 250 M, that of l <= 16 M, 128
// sum_b scale_b * sum32_b <= 133 M), then
//   acc = fma(f32(isum), d * da, acc)
// Source: ggml-common.h (block_iq4_xs, kvalues_iq4nl).

#include "kernels/kernels.h"

#include <cstddef>

namespace tally::kernels {

struct Iq4XsUnit {
  static constexpr size_t kSubBlock = 256;  // bytes from one sub-block's codes to the next
  static constexpr size_t kD = 2048, kScale = 2080, kBytes = 2208;
};

void iq4_xs_amx(const LinearArgs& args);
void iq4_xs_avx512vnni(const LinearArgs& args);
void iq4_xs_avx512(const LinearArgs& args);
void iq4_xs_avxvnni(const LinearArgs& args);
void iq4_xs_avx2(const LinearArgs& args);
void iq4_xs_scalar(const LinearArgs& args);

}  // namespace tally::kernels
