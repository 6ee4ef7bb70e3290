#pragma once
// Q4_0 in lanes: the nibbles are the codes.
// See block32/tile.h.

#include "kernels/block32/nibbles.h"
#include "kernels/q4_0/q4_0.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct Q4_0Lanes {
  static constexpr size_t kUnit = kQ4_0Unit, kScale = kQ4_0Scale, kMin = 0;
  static constexpr int32_t kMaxCode = 15, kOffset = 8;

  template <size_t h>
  static TALLY_INLINE void unpack(const uint8_t* rows, Lanes::I (&codes)[4]) {
    unpack_nibbles<h>(rows, codes);
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
