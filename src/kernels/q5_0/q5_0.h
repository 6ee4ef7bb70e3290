#pragma once
// Q5_0: w = d * (q - 16), q in 0..31, one f16 d for 32 values of a row.
//
// Packed into the Q8_0 unit (q8_0/q8_0.h): q - 16 fits its codes and d is the same f16, so the products are
// those of Q8_0. Only the tiers of vpmaddubsw have kernels of their own: 5-bit codes allow 16-bit partial
// sums, 8-bit codes do not.

#include "kernels/q8_0/q8_0.h"

namespace tally::kernels {

void q5_0_avx2(const LinearArgs& args);
void q5_0_avx512(const LinearArgs& args);

}  // namespace tally::kernels
