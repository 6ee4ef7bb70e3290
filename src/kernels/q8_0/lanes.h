#pragma once
// Q8_0 in lanes: the bytes are the codes.
// See block32/tile.h.

#include "kernels/q8_0/q8_0.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct Q8_0Lanes {
  static constexpr size_t kUnit = kQ8_0Unit, kScale = kQ8_0Scale, kMin = 0;
  static constexpr int32_t kMaxCode = 255, kOffset = 128;

  template <size_t h>
  static TALLY_INLINE void unpack(const uint8_t* rows, Lanes::I (&codes)[4]) {
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) codes[j] = Lanes::load(rows + 64 * (4 * h + j));
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
