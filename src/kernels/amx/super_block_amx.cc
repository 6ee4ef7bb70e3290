// Q4_K, Q5_K, Q6_K and IQ4_XS on AMX: super_block_amx.h; the formats are those of the other tiers. Here: from
// how many tokens on the tile unit pays. Measured on a Xeon, in cache, unpacking included, VNNI -> AMX in
// GOP/s:
//   tokens       4         8         12        16
//   Q4_K      417/290   416/484   389/601   408/719
//   Q6_K      284/156   271/282   260/389   270/484

#define TALLY_LANES_VNNI
// Over its Lanes:
#include "kernels/amx/super_block_amx.h"

#include "kernels/iq4_xs/lanes.h"
#include "kernels/lanes512.h"
#include "kernels/q4k/lanes.h"
#include "kernels/q5k/lanes.h"
#include "kernels/q6k/lanes.h"

namespace TALLY_KERNELS_TIER {

// The rows of fewer tokens.
void q4k_avx512vnni(const LinearArgs& args);
void q5k_avx512vnni(const LinearArgs& args);
void q6k_avx512vnni(const LinearArgs& args);
void iq4_xs_avx512vnni(const LinearArgs& args);

namespace {

constexpr size_t kFewestScaleSplit = 8, kFewestProductSplit = 12;

}  // namespace

void q4k_amx(const LinearArgs& args) {
  run_super_blocks_amx<ScaleSplit<Q4KLanes>>(args, kFewestScaleSplit, q4k_avx512vnni);
}
void q5k_amx(const LinearArgs& args) {
  run_super_blocks_amx<ScaleSplit<Q5KLanes>>(args, kFewestScaleSplit, q5k_avx512vnni);
}
void q6k_amx(const LinearArgs& args) {
  run_super_blocks_amx<ProductSplit<Q6KLanes, 32>>(args, kFewestProductSplit, q6k_avx512vnni);
}
void iq4_xs_amx(const LinearArgs& args) {
  run_super_blocks_amx<ProductSplit<Iq4XsLanes, 128>>(args, kFewestProductSplit, iq4_xs_avx512vnni);
}

}  // namespace TALLY_KERNELS_TIER
