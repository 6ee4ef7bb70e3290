// The list of the vector kernels and the choice from it.

#include "kernels/linear.h"
#include "kernels/vector/vector.h"

namespace tally::kernels {
namespace {

constexpr Variant<const VectorKernels*> kVariants[] = {
#define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, &symbol},
#include "kernels/vector/variants.inc"
#undef TALLY_VARIANT
};

}  // namespace

std::span<const Variant<const VectorKernels*>> vector_variants() { return kVariants; }

VectorKernels select_vector(Isa isa) { return *best_variant(vector_variants(), isa).entry; }

}  // namespace tally::kernels
