#pragma once
// Q6_K for super_block/tile.h.

#include "kernels/q6k/q6k.h"
#include "kernels/super_block/rows.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct Q6KLanes : ByOffset<Q6KUnit, 16, 5> {
  static constexpr size_t kPlanes = 1;
  static constexpr int kMaxCode = 63;

  template <size_t kPlane>
  static TALLY_INLINE void load(const uint8_t* sub, Integers* codes) {
    unpack_nibbles(sub, codes);
    const Integers bits = Lanes::set8(0x30);
    const auto set = [&](size_t g, Integers shifted)
                         TALLY_INLINE { codes[g] = Lanes::bit_or(codes[g], Lanes::bit_and(shifted, bits)); };
#pragma GCC unroll 2
    for (size_t pair = 0; pair < 2; ++pair) {
      const Integers high = Lanes::load(sub + Unit::kHigh + 64 * pair);
      set(2 * pair, Lanes::shl16<4>(high));
      set(2 * pair + 1, high);
      set(2 * pair + 4, Lanes::shl16<2>(high));
      set(2 * pair + 5, Lanes::shr16<2>(high));
    }
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
