#pragma once
// The vector kernels: each variant is one constant table. Private to the room; contracts in kernels.h
// (VectorKernels), formulas and accuracy in polynomials.h, order of operations in scalar.cc.
//
// Ensures, beyond kernels.h: n = 0 and pairs = 0 are allowed and touch nothing; no alignment is needed; where
// a result is NaN it is NaN in every variant, with any sign and payload; every other bit is the same in every
// variant.

#include "kernels/kernels.h"
#include "kernels/variants.h"

#include <span>

namespace tally::kernels {

#define TALLY_VARIANT(isa, symbol) extern const VectorKernels symbol;
#include "kernels/vector/variants.inc"
#undef TALLY_VARIANT

std::span<const Variant<const VectorKernels*>> vector_variants();

}  // namespace tally::kernels
