#pragma once
// Q8_0: w = d * q, q in -128..127, one f16 d for 32 values of a row. Q5_0 packs into the same unit.
//
// Packed unit, 16 rows x 32 k, 544 bytes (k-groups of 4 are one 32-bit lane a row):
//   0    byte 64 g + 4 r + i, g = 0..7: q + 128 of k = 4 g + i
//   512  f16 d[16]
// Group of 32 rows: [block][rows 0..15, rows 16..31]. Panel: kInt32.
// Arithmetic, blocks ascending: acc = fma(f32(sum of q * a), d * d_a, acc).

#include "kernels/linear.h"

namespace tally::kernels {

inline constexpr size_t kQ8_0Unit = 544, kQ8_0Scale = 512;

void q8_0_amx(const LinearArgs& args);
void q8_0_scalar(const LinearArgs& args);
void q8_0_avx2(const LinearArgs& args);
void q8_0_avxvnni(const LinearArgs& args);
void q8_0_avx512(const LinearArgs& args);
void q8_0_avx512vnni(const LinearArgs& args);

}  // namespace tally::kernels
