#pragma once
// Q5_1 in lanes: the fifth bit is put on each nibble.
// See block32/tile.h.

#include "kernels/block32/nibbles.h"
#include "kernels/q5_1/q5_1.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct Q5_1Lanes {
  static constexpr size_t kUnit = kQ5_1Unit, kScale = kQ5_1Scale, kMin = kQ5_1Min;
  static constexpr int32_t kMaxCode = 31, kOffset = 0;

  template <size_t h>
  static TALLY_INLINE void unpack(const uint8_t* rows, Lanes::I (&codes)[4]) {
    const Lanes::I bits = Lanes::load(rows + kQ5_1High);
    unpack_nibbles<h>(rows, codes);
    if constexpr (h == 0) {
      codes[0] = with_bit(codes[0], Lanes::shl16<4>(bits));
      codes[1] = with_bit(codes[1], Lanes::shl16<3>(bits));
      codes[2] = with_bit(codes[2], Lanes::shl16<2>(bits));
      codes[3] = with_bit(codes[3], Lanes::shl16<1>(bits));
    } else {
      codes[0] = with_bit(codes[0], bits);
      codes[1] = with_bit(codes[1], Lanes::shr16<1>(bits));
      codes[2] = with_bit(codes[2], Lanes::shr16<2>(bits));
      codes[3] = with_bit(codes[3], Lanes::shr16<3>(bits));
    }
  }

 private:
  static TALLY_INLINE Lanes::I with_bit(Lanes::I nibble, Lanes::I bits) {
    return Lanes::bit_or(nibble, Lanes::bit_and(bits, Lanes::set8(16)));
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
