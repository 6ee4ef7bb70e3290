// The int8 roof of AMX: four accumulators of 16 x 16 from two tiles of each operand: a tile product begins
// every 16 cycles and its result is there after 52.

#include "kernels/intrin_amx.h"
#include "kernels/roof/loops.h"

namespace TALLY_KERNELS_TIER {

uint64_t roof_tdpbusd(const RoofArgs& args) {
  TileConfig config;
  for (size_t i = 0; i < 8; ++i) config.shape(i, 16, 64);
  alignas(64) uint8_t operand[16 * 64];
  for (uint8_t& byte : operand) byte = static_cast<uint8_t>(args.rounds & 1);
  alignas(64) uint32_t sum[16 * 16];
  Tiles tiles(config);
  tiles.load<4>(operand, 64);
  tiles.load<5>(operand, 64);
  tiles.load<6>(operand, 64);
  tiles.load<7>(operand, 64);
  for (uint64_t n = 0; n < args.rounds; ++n) {
    tiles.dot_us<0, 4, 6>();
    tiles.dot_us<1, 4, 7>();
    tiles.dot_us<2, 5, 6>();
    tiles.dot_us<3, 5, 7>();
  }
  tiles.store<3>(sum, 64);
  return sum[0];
}

}  // namespace TALLY_KERNELS_TIER
