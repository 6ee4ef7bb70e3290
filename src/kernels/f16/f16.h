#pragma once
// F16 weights, widened exactly.
//
// Packed group of 32 rows: f16 [k][32]. Panel: kF32; any k >= 1.
// Arithmetic: acc = fma(f32(w), x, acc), k ascending.

#include "kernels/linear.h"

namespace tally::kernels {

void f16_scalar(const LinearArgs& args);
void f16_avx2(const LinearArgs& args);
void f16_avx512(const LinearArgs& args);

}  // namespace tally::kernels
