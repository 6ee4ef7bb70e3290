#pragma once
// BF16 weights, widened exactly.
//
// Packed group of 32 rows: bf16 [(k + 1) / 2][32][2], so that one 32-bit lane is a row's pair (k, k + 1); an
// odd last k is paired with a zero that takes no part in the sums. Panel: kF32; any k >= 1. Arithmetic: acc =
// fma(f32(w), x, acc), k ascending.

#include "kernels/linear.h"

namespace tally::kernels {

void bf16_scalar(const LinearArgs& args);
void bf16_avx2(const LinearArgs& args);
void bf16_avx512(const LinearArgs& args);

}  // namespace tally::kernels
