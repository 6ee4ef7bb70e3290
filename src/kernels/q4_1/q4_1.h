#pragma once
// Q4_1: w = d * q + m, q in 0..15, f16 d and m for 32 values of a row.
//
// Packed unit, 16 rows x 32 k, 320 bytes (k-groups of 4 are one 32-bit lane a row):
//   0    byte 64 j + 4 r + i, j = 0..3: low nibble q of k = 4 j + i, high nibble q of k = 16 + 4 j + i
//   256  f16 d[16]
//   288  f16 m[16]
// Group of 32 rows: [block][rows 0..15, rows 16..31]. Panel: kInt32.
// Arithmetic, blocks ascending: acc = fma(f32(sum of q * a), d * d_a, acc), then acc = fma(m, d_a * f32(sum
// of a), acc).

#include "kernels/linear.h"

namespace tally::kernels {

inline constexpr size_t kQ4_1Unit = 320, kQ4_1Scale = 256, kQ4_1Min = 288;

void q4_1_amx(const LinearArgs& args);
void q4_1_scalar(const LinearArgs& args);
void q4_1_avx2(const LinearArgs& args);
void q4_1_avxvnni(const LinearArgs& args);
void q4_1_avx512(const LinearArgs& args);
void q4_1_avx512vnni(const LinearArgs& args);

}  // namespace tally::kernels
