#pragma once
// F32 in lanes. See floats/tile.h.

#include "kernels/f32/f32.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct F32Lanes {
  static constexpr size_t kStep = 1, kBytes = kGroupRows * 4;
  static constexpr bool kWidens = false;

  static TALLY_INLINE void load(const uint8_t* w, size_t i, Lanes::F (&f)[1]) {
    f[0] = Lanes::load_f(reinterpret_cast<const float*>(w) + Lanes::kRows * i);
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
