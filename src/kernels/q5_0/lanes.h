#pragma once
// Q5_0 in lanes: a byte of the Q8_0 unit less 112 is the file's code, 0..31. (Tiers that take any byte as it
// is have no use for this: there Q5_0 is Q8_0.) See block32/tile.h.

#include "kernels/q5_0/q5_0.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct Q5_0Lanes {
  static constexpr size_t kUnit = kQ8_0Unit, kScale = kQ8_0Scale, kMin = 0;
  static constexpr int32_t kMaxCode = 31, kOffset = 16;

  template <size_t h>
  static TALLY_INLINE void unpack(const uint8_t* rows, Lanes::I (&codes)[4]) {
    const Lanes::I offset = Lanes::set8(-112);
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) codes[j] = Lanes::add8(Lanes::load(rows + 64 * (4 * h + j)), offset);
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
