// The formats with blocks of 256 on AVX2: tile.h.

#include "kernels/lanes256.h"
#include "kernels/super_block/formats.h"

namespace TALLY_KERNELS_TIER {

#define TALLY_SUPER_BLOCK(family, Format) \
  void family##_avx2(const LinearArgs& args) { run_super_blocks<Format>(args); }
#include "kernels/super_block/formats.inc"
#undef TALLY_SUPER_BLOCK

}  // namespace TALLY_KERNELS_TIER
