#pragma once
// BF16 in lanes: a lane holds the row's pair (k, k + 1); a shift and a mask widen its halves exactly.
// See floats/tile.h.

#include "kernels/bf16/bf16.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct BF16Lanes {
  static constexpr size_t kStep = 2, kBytes = kGroupRows * 4;
  static constexpr bool kWidens = true;

  static TALLY_INLINE void load(const uint8_t* w, size_t i, Lanes::F (&f)[2]) {
    const Lanes::I pairs = Lanes::load(w + 4 * Lanes::kRows * i);
    f[0] = Lanes::as_float(Lanes::shl32<16>(pairs));
    f[1] = Lanes::as_float(Lanes::bit_and(pairs, Lanes::set32(static_cast<int32_t>(0xFFFF0000u))));
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
