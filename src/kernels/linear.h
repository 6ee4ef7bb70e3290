#pragma once
// The linear families as kernels.cc, the tests and the benches see them. Private to the room.

#include "kernels/kernels.h"
#include "kernels/variants.h"

#include <span>

namespace tally::kernels {

using LinearVariant = Variant<LinearFn>;

// What a family offers: its format (run and isa not yet chosen) and its list of variants.
struct LinearFamily {
  LinearFormat format;
  std::span<const LinearVariant> variants;
};

// One function a family, defined beside its packing (<family>/pack.cc).
LinearFamily f32_family();
LinearFamily f16_family();
LinearFamily bf16_family();
LinearFamily q4_0_family();
LinearFamily q4_1_family();
LinearFamily q5_0_family();
LinearFamily q5_1_family();
LinearFamily q8_0_family();
LinearFamily q2k_family();
LinearFamily q3k_family();
LinearFamily q4k_family();
LinearFamily q5k_family();
LinearFamily q6k_family();
LinearFamily iq4_nl_family();
LinearFamily iq4_xs_family();
LinearFamily mxfp4_family();

// All of them, in the order of KernelTable::linear.
std::array<LinearFamily, kLinearFormats> linear_families();

// The other families of the table.
std::span<const Variant<PanelFn>> panel_variants(PanelKind kind);   // panel/
VectorKernels select_vector(Isa isa);                               // vector/
AttentionKernels select_attention(tensor::KvCodec codec, Isa isa);  // attention/

}  // namespace tally::kernels
