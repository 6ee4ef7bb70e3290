// The float formats on AVX2: tile.h.

#include "kernels/lanes256.h"
// Over its Lanes:
#include "kernels/bf16/lanes.h"
#include "kernels/f16/lanes.h"
#include "kernels/f32/lanes.h"
#include "kernels/floats/tile.h"

namespace TALLY_KERNELS_TIER {

void f32_avx2(const LinearArgs& args) { linear_floats<F32Lanes>(args); }
void f16_avx2(const LinearArgs& args) { linear_floats<F16Lanes>(args); }
void bf16_avx2(const LinearArgs& args) { linear_floats<BF16Lanes>(args); }

}  // namespace TALLY_KERNELS_TIER
