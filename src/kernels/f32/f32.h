#pragma once
// F32 weights as they are.
//
// Packed group of 32 rows: f32 [k][32]. Panel: kF32; any k >= 1.
// Arithmetic: acc = fma(w, x, acc), k ascending.

#include "kernels/linear.h"

namespace tally::kernels {

void f32_scalar(const LinearArgs& args);
void f32_avx2(const LinearArgs& args);
void f32_avx512(const LinearArgs& args);

}  // namespace tally::kernels
