#pragma once
// The nibbles of the units that begin with 256 bytes of them: byte 64 j + 4 r + i holds k = 4 j + i of row r
// and, above it, k = 16 + 4 j + i. Include lanes256.h or lanes512.h first.

namespace TALLY_KERNELS_TIER {
namespace {

// k-groups 4 h .. 4 h + 3, a register each.
template <size_t h>
TALLY_INLINE inline void unpack_nibbles(const uint8_t* rows, Lanes::I (&codes)[4]) {
  const Lanes::I mask = Lanes::set8(15);
#pragma GCC unroll 4
  for (size_t j = 0; j < 4; ++j) {
    Lanes::I pair = Lanes::load(rows + 64 * j);
    if constexpr (h == 1) pair = Lanes::template shr16<4>(pair);
    codes[j] = Lanes::bit_and(pair, mask);
  }
}

}  // namespace
}  // namespace TALLY_KERNELS_TIER
