#pragma once
// MXFP4 in lanes: the nibbles are looked up as value + 12, 0..24.
// See block32/tile.h.

#include "kernels/block32/nibbles.h"
#include "kernels/mxfp4/mxfp4.h"
#include "tensor/blocks.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct Mxfp4Lanes {
  static constexpr size_t kUnit = kMxfp4Unit, kMin = 0;
  static constexpr int32_t kMaxCode = 24, kOffset = 12;

  template <size_t h>
  static TALLY_INLINE void unpack(const uint8_t* rows, Lanes::I (&codes)[4]) {
    const Lanes::I table = Lanes::add8(Lanes::load_table(tensor::kMxfp4Values), Lanes::set8(12));
    unpack_nibbles<h>(rows, codes);
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) codes[j] = Lanes::shuffle8(table, codes[j]);
  }

  // 2^(e - 128): e - 1 is the exponent of a float, but for the subnormals of e = 0 and 1, which are 1 and 2
  // times 2^-128, that is (e + 1) << 21, and larger than what e - 1 gives for them; for any other e they are
  // smaller.
  static TALLY_INLINE Lanes::F scales(const uint8_t* unit, size_t row) {
    const Lanes::I e = Lanes::load_u8(unit + kMxfp4Scale + row), one = Lanes::set32(1);
    const Lanes::I normal = Lanes::shl32<23>(Lanes::sub32(e, one));
    return Lanes::as_float(Lanes::max32(normal, Lanes::shl32<21>(Lanes::add32(e, one))));
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
