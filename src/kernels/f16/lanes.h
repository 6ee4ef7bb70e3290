#pragma once
// F16 in lanes: widened by vcvtph2ps, exactly. See floats/tile.h.

#include "kernels/f16/f16.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct F16Lanes {
  static constexpr size_t kStep = 1, kBytes = kGroupRows * 2;
  static constexpr bool kWidens = false;

  static TALLY_INLINE void load(const uint8_t* w, size_t i, Lanes::F (&f)[1]) {
    f[0] = Lanes::load_f16(w + 2 * Lanes::kRows * i);
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
