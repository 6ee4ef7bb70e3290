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
// AVX-512 files are compiled twice: for the CPU, and for the tests on any host with the instructions emulated
// (intrin512.h). They write `namespace TALLY_KERNELS_512 {` instead of `namespace tally::kernels {`, which
// puts the emulated copy of each symbol in tally::kernels::emulated. A test lists those copies with
//   #define TALLY_VARIANT(isa, symbol) TALLY_EMULATED_##isa(symbol)

#include "kernels/isa.h"

#include <span>
#include <string_view>

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
