// The formats with blocks of 32 on AVX2: tile.h.

#include "kernels/lanes256.h"
// Over its Lanes:
#include "kernels/block32/formats.h"

namespace TALLY_KERNELS_TIER {

#define TALLY_BLOCK32(name, Format) \
  void name##_avx2(const LinearArgs& args) { linear_block32<Format>(args); }
#include "kernels/block32/formats.inc"
#undef TALLY_BLOCK32

}  // namespace TALLY_KERNELS_TIER
