#pragma once
// Q5_1: w = d * q + m, q in 0..31, f16 d and m for 32 values of a row.
//
// Packed unit, 16 rows x 32 k, 384 bytes (k-groups of 4 are one 32-bit lane a row):
//   0    byte 64 j + 4 r + i, j = 0..3: low nibble of q of k = 4 j + i, high nibble of k = 16 + 4 j + i
//   256  byte 4 r + i: bit j = bit 4 of q of k = 4 j + i, bit 4 + j = of k = 16 + 4 j + i
//   320  f16 d[16]
//   352  f16 m[16]
// Group of 32 rows: [block][rows 0..15, rows 16..31]. Panel: kInt32.
// Arithmetic, blocks ascending: acc = fma(f32(sum of q * a), d * d_a, acc), then acc = fma(m, d_a * f32(sum
// of a), acc).

#include "kernels/linear.h"

namespace tally::kernels {

inline constexpr size_t kQ5_1Unit = 384, kQ5_1High = 256, kQ5_1Scale = 320, kQ5_1Min = 352;

void q5_1_amx(const LinearArgs& args);
void q5_1_scalar(const LinearArgs& args);
void q5_1_avx2(const LinearArgs& args);
void q5_1_avxvnni(const LinearArgs& args);
void q5_1_avx512(const LinearArgs& args);
void q5_1_avx512vnni(const LinearArgs& args);

}  // namespace tally::kernels
