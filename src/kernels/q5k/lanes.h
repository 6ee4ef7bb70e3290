#pragma once
// Q5_K for super_block/tile.h: Q4_K with a fifth bit.

#include "kernels/q4k/lanes.h"
#include "kernels/q5k/q5k.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct Q5KLanes : SixBitScales<Q5KUnit> {
  static constexpr size_t kPlanes = 1;
  static constexpr int kMaxCode = 31;

  template <size_t kPlane>
  static TALLY_INLINE void load(const uint8_t* sub, Integers* codes) {
    unpack_nibbles(sub, codes);
    // Bit g of a byte is the fifth of code g.
    const Integers high = Lanes::load(sub + Unit::kHigh), fifth = Lanes::set8(16);
    const auto set = [&](size_t g, Integers shifted)
                         TALLY_INLINE { codes[g] = Lanes::bit_or(codes[g], Lanes::bit_and(shifted, fifth)); };
    set(0, Lanes::shl16<4>(high));
    set(1, Lanes::shl16<3>(high));
    set(2, Lanes::shl16<2>(high));
    set(3, Lanes::shl16<1>(high));
    set(4, high);
    set(5, Lanes::shr16<1>(high));
    set(6, Lanes::shr16<2>(high));
    set(7, Lanes::shr16<3>(high));
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
