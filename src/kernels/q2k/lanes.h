#pragma once
// Q2_K for super_block/tile.h.

#include "kernels/q2k/q2k.h"
#include "kernels/super_block/rows.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct Q2KLanes : ByMinimum<Q2KUnit> {
  static constexpr size_t kElements = 16, kPlanes = 1;
  static constexpr int kMaxCode = 3;

  template <size_t kPlane>
  static TALLY_INLINE void load(const uint8_t* sub, Integers* codes) {
    unpack_two_bits(sub, codes);
  }
  template <size_t kPlane, ScaleForm kForm>
  static TALLY_INLINE Integers scale(Rows rows, size_t g) {
    const Integers low = kForm == ScaleForm::kBothHalves ? Lanes::set16(15) : Lanes::set32(15);
    return Lanes::bit_and(load_scale<kForm>(rows.bytes(Unit::kScale + 16 * g)), low);
  }
  static TALLY_INLINE Integers side(Rows rows, size_t j) {
    const uint8_t* both = rows.bytes(Unit::kScale + 32 * j);
    return Lanes::bit_and(Lanes::shr16<4>(Lanes::load_s8_pair(both, both + 16)), Lanes::set16(15));
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
