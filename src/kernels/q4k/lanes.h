#pragma once
// Q4_K for super_block/tile.h, and what Q5_K has of it.

#include "kernels/q4k/q4k.h"
#include "kernels/super_block/rows.h"

namespace TALLY_KERNELS_TIER {
namespace {

// Scales and minimums of 6 bits, one a sub-block.
template <class UnitOf>
struct SixBitScales : ByMinimum<UnitOf> {
  static constexpr size_t kElements = 32;

  template <size_t kPlane, ScaleForm kForm>
  static TALLY_INLINE Integers scale(Rows rows, size_t g) {
    return load_scale<kForm>(rows.bytes(UnitOf::kScale + 16 * g));
  }
  static TALLY_INLINE Integers side(Rows rows, size_t j) {
    return Lanes::load(rows.words(UnitOf::kMin + 64 * j));
  }
};

struct Q4KLanes : SixBitScales<Q4KUnit> {
  static constexpr size_t kPlanes = 1;
  static constexpr int kMaxCode = 15;

  template <size_t kPlane>
  static TALLY_INLINE void load(const uint8_t* sub, Integers* codes) {
    unpack_nibbles(sub, codes);
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
