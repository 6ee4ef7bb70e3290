#pragma once
// IQ4_XS for super_block/tile.h: nibbles look up value + 128, 1..241, which vpdpbusd takes as it is. For
// vpmaddubsw it is too much: there value + 128 = 16 h + l, and h and l, 0..15 both, are two planes with a
// table of their own, codes like those of Q4_K, the scale of h being 16 times that of l.

#include "kernels/iq4_xs/iq4_xs.h"
#include "kernels/super_block/rows.h"
#include "tensor/blocks.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct Iq4XsLanes : ByOffset<Iq4XsUnit, 32, 7> {
  static constexpr size_t kPlanes = Lanes::kVnni ? 1 : 2;
  static constexpr int kMaxCode = Lanes::kVnni ? 241 : 15;

  template <size_t kPlane>
  static TALLY_INLINE void load(const uint8_t* sub, Integers* codes) {
    Integers table = Lanes::add8(Lanes::load_table(tensor::kIq4Values), Lanes::set8(-128));
    if constexpr (kPlanes == 2)
      table = Lanes::bit_and(kPlane == 0 ? Lanes::shr16<4>(table) : table, Lanes::set8(15));
    unpack_nibbles(sub, codes);
#pragma GCC unroll 8
    for (size_t g = 0; g < 8; ++g) codes[g] = Lanes::shuffle8(table, codes[g]);
  }
  template <size_t kPlane, ScaleForm kForm>
  static TALLY_INLINE Integers scale(Rows rows, size_t g) {
    const Integers scale = ByOffset::scale<kPlane, kForm>(rows, g);
    return kPlanes == 2 && kPlane == 0 ? Lanes::shl16<4>(scale) : scale;
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
