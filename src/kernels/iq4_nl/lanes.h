#pragma once
// IQ4_NL in lanes: the nibbles are looked up as value + 128, 1..241; its two planes have tables of their own.
// See block32/tile.h.

#include "kernels/block32/nibbles.h"
#include "kernels/iq4_nl/iq4_nl.h"
#include "tensor/blocks.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct Iq4NlLanes {
  static constexpr size_t kUnit = kIq4NlUnit, kScale = kIq4NlScale, kMin = 0;
  static constexpr int32_t kMaxCode = 255, kOffset = 128;

  template <size_t h>
  static TALLY_INLINE void unpack(const uint8_t* rows, Lanes::I (&codes)[4]) {
    const Lanes::I table = Lanes::add8(Lanes::load_table(tensor::kIq4Values), Lanes::set8(-128));
    unpack_nibbles<h>(rows, codes);
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) codes[j] = Lanes::shuffle8(table, codes[j]);
  }

  template <size_t h>
  static TALLY_INLINE void unpack_planes(const uint8_t* rows, Lanes::I (&high)[4], Lanes::I (&low)[4]) {
    const Lanes::I table = Lanes::add8(Lanes::load_table(tensor::kIq4Values), Lanes::set8(-128));
    const Lanes::I mask = Lanes::set8(15);
    const Lanes::I highs = Lanes::bit_and(Lanes::shr16<4>(table), mask), lows = Lanes::bit_and(table, mask);
    unpack_nibbles<h>(rows, low);
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      high[j] = Lanes::shuffle8(highs, low[j]);
      low[j] = Lanes::shuffle8(lows, low[j]);
    }
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
