#pragma once
// Q4_1 in lanes: the nibbles are the codes.
// See block32/tile.h.

#include "kernels/block32/nibbles.h"
#include "kernels/q4_1/q4_1.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct Q4_1Lanes {
  static constexpr size_t kUnit = kQ4_1Unit, kScale = kQ4_1Scale, kMin = kQ4_1Min;
  static constexpr int32_t kMaxCode = 15, kOffset = 0;

  template <size_t h>
  static TALLY_INLINE void unpack(const uint8_t* rows, Lanes::I (&codes)[4]) {
    unpack_nibbles<h>(rows, codes);
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
