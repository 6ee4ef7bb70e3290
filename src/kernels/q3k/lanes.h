#pragma once
// Q3_K for super_block/tile.h.

#include "kernels/q3k/q3k.h"
#include "kernels/super_block/rows.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct Q3KLanes : ByOffset<Q3KUnit, 16, 2> {
  static constexpr size_t kPlanes = 1;
  static constexpr int kMaxCode = 7;

  template <size_t kPlane>
  static TALLY_INLINE void load(const uint8_t* sub, Integers* codes) {
    unpack_two_bits(sub, codes);
    // Bit g of a byte is the third of code g.
    const Integers high = Lanes::load(sub + Unit::kHigh), third = Lanes::set8(4);
    const auto set = [&](size_t g, Integers shifted)
                         TALLY_INLINE { codes[g] = Lanes::bit_or(codes[g], Lanes::bit_and(shifted, third)); };
    set(0, Lanes::shl16<2>(high));
    set(1, Lanes::shl16<1>(high));
    set(2, high);
    set(3, Lanes::shr16<1>(high));
    set(4, Lanes::shr16<2>(high));
    set(5, Lanes::shr16<3>(high));
    set(6, Lanes::shr16<4>(high));
    set(7, Lanes::shr16<5>(high));
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
