#pragma once
// MXFP4: w = 2^(e - 128) * kMxfp4Values[c], c in 0..15, one byte e for 32 values of a row.
//
// Packed unit, 16 rows x 32 k, 272 bytes, 4.25 bits a weight (k-groups of 4 are one 32-bit lane a row):
//   0    byte 64 j + 4 r + i, j = 0..3: low nibble c of k = 4 j + i, high nibble c of k = 16 + 4 j + i
//   256  u8 e[16]
// Group of 32 rows: [block][rows 0..15, rows 16..31]. Panel: kInt32.
// Arithmetic, blocks ascending: acc = fma(f32(sum of kMxfp4Values[c] * a), 2^(e - 128) * d_a, acc); |sum| <=
// 32 * 12 * 127 = 48,768, exact. The subnormal scales of e = 0 and 1 count as 0 in the engine's float mode.
// Source: ggml-common.h (block_mxfp4, kvalues_mxfp4), OCP Microscaling Formats 1.0.

#include "kernels/linear.h"

namespace tally::kernels {

inline constexpr size_t kMxfp4Unit = 272, kMxfp4Scale = 256;

void mxfp4_scalar(const LinearArgs& args);
void mxfp4_avx2(const LinearArgs& args);
void mxfp4_avxvnni(const LinearArgs& args);
void mxfp4_avx512(const LinearArgs& args);
void mxfp4_avx512vnni(const LinearArgs& args);

}  // namespace tally::kernels
