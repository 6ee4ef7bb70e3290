#pragma once
// The rows of the linear lists that a test can run on this host: the CPU's own, and the emulated copies of
// the tiers above AVX2 (tier.h).

#include "kernels/linear.h"

#include <vector>

namespace tally::kernels {

namespace emulated {
#define TALLY_FAMILY(type)
#define TALLY_VARIANT(isa, symbol) TALLY_IF_EMULATED_##isa(void symbol(const LinearArgs&);)
#include "kernels/linear_variants.inc"
#undef TALLY_FAMILY
#undef TALLY_VARIANT
}  // namespace emulated

// In the family's order, emulated ones last; the scalar definition is left out.
inline std::vector<LinearVariant> runnable(const LinearFamily& family) {
  struct Row {
    tensor::DType family;  // of the rows that follow, if `variant` has no entry
    LinearVariant variant;
  };
  static constexpr Row kEmulated[] = {
#define TALLY_FAMILY(type) {tensor::DType::type, {Isa::kScalar, "", nullptr}},
#define TALLY_VARIANT(isa, symbol) \
  TALLY_IF_EMULATED_##isa({tensor::DType::kF32, {Isa::isa, "emulated " #symbol, emulated::symbol}}, )
#include "kernels/linear_variants.inc"
#undef TALLY_FAMILY
#undef TALLY_VARIANT
  };
  std::vector<LinearVariant> list;
  for (const LinearVariant& v : family.variants)
    if (v.isa != Isa::kScalar && host_has(v.isa)) list.push_back(v);
  bool mine = false;
  for (const Row& row : kEmulated) {
    if (row.variant.entry == nullptr)
      mine = row.family == family.format.type;
    else if (mine && host_has(Isa::kAvx2))
      list.push_back(row.variant);
  }
  return list;
}

}  // namespace tally::kernels
