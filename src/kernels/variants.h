#pragma once
// One list a family. <family>/variants.inc holds rows `TALLY_VARIANT(kAvx2, q4k_avx2)`, best first, the
// scalar definition last; dispatch, tests and benches all read it. A symbol is whatever the family's entry
// is: a LinearFn, or a constant table.
//
//   q4k.h        declares every symbol of variants.inc in namespace tally::kernels
//   pack.cc      constexpr Variant<LinearFn> kVariants[] = {
//                #define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, symbol},
//                #include "kernels/q4k/variants.inc"
//                #undef TALLY_VARIANT
//                };
//
// The tiers above AVX2 are compiled a second time, emulated (tier.h), for tests on any host.
// TALLY_IF_EMULATED_<isa>(...) is its arguments for the tiers that have such a copy and nothing for the
// others.

#include "kernels/isa.h"

#include <span>
#include <string_view>

#define TALLY_IF_EMULATED_kScalar(...)
#define TALLY_IF_EMULATED_kAvx2(...)
#define TALLY_IF_EMULATED_kAvxVnni(...) __VA_ARGS__
#define TALLY_IF_EMULATED_kAvx512(...) __VA_ARGS__
#define TALLY_IF_EMULATED_kAvx512Vnni(...) __VA_ARGS__
#define TALLY_IF_EMULATED_kAmx(...) __VA_ARGS__

namespace tally::kernels {

template <class Entry>
struct Variant {
  Isa isa;
  std::string_view name;
  Entry entry;
};

// The first row that is not above `isa` and that the host can run. Requires: the last row is scalar.
template <class Entry>
const Variant<Entry>& best_variant(std::span<const Variant<Entry>> list, Isa isa) {
  for (const Variant<Entry>& v : list)
    if (v.isa <= isa && host_has(v.isa)) return v;
  return list.back();
}

}  // namespace tally::kernels
