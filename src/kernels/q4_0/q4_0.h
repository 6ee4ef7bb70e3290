#pragma once
// Q4_0: w = d * (q - 8), q in 0..15, one f16 d for 32 values of a row.
//
// Packed unit, 16 rows x 32 k, 288 bytes (k-groups of 4 are one 32-bit lane a row):
//   0    byte 64 j + 4 r + i, j = 0..3: low nibble q of k = 4 j + i, high nibble q of k = 16 + 4 j + i
//   256  f16 d[16]
// Group of 32 rows: [block][rows 0..15, rows 16..31]. Panel: kInt32.
// Arithmetic, blocks ascending: acc = fma(f32(sum of (q - 8) * a), d * d_a, acc).

#include "kernels/linear.h"

namespace tally::kernels {

inline constexpr size_t kQ4_0Unit = 288, kQ4_0Scale = 256;

void q4_0_amx(const LinearArgs& args);
void q4_0_scalar(const LinearArgs& args);
void q4_0_avx2(const LinearArgs& args);
void q4_0_avxvnni(const LinearArgs& args);
void q4_0_avx512(const LinearArgs& args);
void q4_0_avx512vnni(const LinearArgs& args);

}  // namespace tally::kernels
