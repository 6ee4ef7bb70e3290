#pragma once
// What the formats with blocks of 256 tell the loop of tile.h of themselves (<family>/lanes.h), and the parts
// that several of them share. Included behind lanes256.h or lanes512.h. Internal linkage, see panel.h.
//
// A Format has:
//   Unit         the offsets of its packed unit
//   kElements    of k that a scale serves: 16 or 32
//   kPlanes      1, or 2: a code is the sum of two, each with a scale of its own
//   kMaxCode     the largest byte that load makes
//   load<plane>(sub, codes)       codes[g], g in 0..7: unsigned bytes, k = 4 g .. 4 g + 3 of each row;
//                                 `sub`: the first byte of the rows in the sub-block
//   scale<plane, form>(rows, g)   of k = kElements g .. of the block
//   side(rows, j)                 16-bit pairs, the factors of the panel's sums of kElements 2 j and 2 j + 1:
//                                 the sum of their products is what unsigned codes or minimums take off
//   factors(rows), add(factors, isum, side sum, da, acc)   the float chain of one block

#include "kernels/linear_loop.h"

namespace TALLY_KERNELS_TIER {
namespace {

using Integers = Lanes::I;
using Floats = Lanes::F;

// Lanes::kRows neighbouring rows of a packed unit, from row `first` on.
struct Rows {
  const uint8_t* unit;
  size_t first;

  // Where their part of a field with four, two or one bytes a row begins.
  const uint8_t* words(size_t field) const { return unit + field + 4 * first; }
  const uint8_t* halves(size_t field) const { return unit + field + 2 * first; }
  const uint8_t* bytes(size_t field) const { return unit + field + first; }
};

// How a row's scale, a byte, lies in the row's 32-bit lane.
enum class ScaleForm {
  kBothHalves,  // 16 bits, twice: the factor of two 16-bit sums
  kLowHalf,     // 16 bits under zeros: the factor of one 32-bit sum that fits 16 bits
  kLane,        // 32 bits
};

template <ScaleForm kForm>
TALLY_INLINE inline Integers load_scale(const uint8_t* p) {
  if constexpr (kForm == ScaleForm::kBothHalves) return Lanes::load_s8_pair(p, p);
  if constexpr (kForm == ScaleForm::kLowHalf) return Lanes::bit_and(Lanes::load_s8(p), Lanes::set32(0xFFFF));
  return Lanes::load_s8(p);
}

// Codes of 4 bits (super_block/nibbles.h).
TALLY_INLINE inline void unpack_nibbles(const uint8_t* plane, Integers* codes) {
  const Integers low = Lanes::set8(15);
#pragma GCC unroll 4
  for (size_t j = 0; j < 4; ++j) {
    const Integers pair = Lanes::load(plane + 64 * j);
    codes[j] = Lanes::bit_and(pair, low);
    codes[4 + j] = Lanes::bit_and(Lanes::shr16<4>(pair), low);
  }
}

// Codes of 2 bits, two planes of 16 k (q2k/two_bits.h).
TALLY_INLINE inline void unpack_two_bits(const uint8_t* planes, Integers* codes) {
  const Integers low = Lanes::set8(3);
#pragma GCC unroll 2
  for (size_t g = 0; g < 2; ++g) {
    const Integers four = Lanes::load(planes + 64 * g);
    codes[4 * g] = Lanes::bit_and(four, low);
    codes[4 * g + 1] = Lanes::bit_and(Lanes::shr16<2>(four), low);
    codes[4 * g + 2] = Lanes::bit_and(Lanes::shr16<4>(four), low);
    codes[4 * g + 3] = Lanes::bit_and(Lanes::shr16<6>(four), low);
  }
}

// Formats of value d * scale * code - dmin * min: the side is that of the minimums.
template <class UnitOf>
struct ByMinimum {
  using Unit = UnitOf;
  static constexpr int kShift = 0;
  struct Factors {
    Floats d, dmin;
  };

  static TALLY_INLINE Factors factors(Rows rows) {
    return {Lanes::load_f16(rows.halves(Unit::kD)), Lanes::load_f16(rows.halves(Unit::kMinD))};
  }
  static TALLY_INLINE Floats add(const Factors& f, Integers isum, Integers side, Floats da, Floats acc) {
    acc = Lanes::fma(Lanes::to_float(isum), Lanes::mul(f.d, da), acc);
    return Lanes::fnma(Lanes::to_float(side), Lanes::mul(f.dmin, da), acc);
  }
};

// Formats of value d * scale * (code - 2^kShift), scales signed bytes: the side is that of the scales.
template <class UnitOf, size_t kScaleElements, int kOffsetShift>
struct ByOffset {
  using Unit = UnitOf;
  static constexpr int kShift = kOffsetShift;
  using Factors = Floats;
  static constexpr size_t kElements = kScaleElements;

  template <size_t kPlane, ScaleForm kForm>
  static TALLY_INLINE Integers scale(Rows rows, size_t g) {
    return load_scale<kForm>(rows.bytes(Unit::kScale + 16 * g));
  }
  static TALLY_INLINE Integers side(Rows rows, size_t j) {
    const uint8_t* scale = rows.bytes(Unit::kScale + 32 * j);
    return Lanes::load_s8_pair(scale, scale + 16);
  }
  static TALLY_INLINE Factors factors(Rows rows) { return Lanes::load_f16(rows.halves(Unit::kD)); }
  static TALLY_INLINE Floats add(Factors d, Integers isum, Integers side, Floats da, Floats acc) {
    const Integers exact = Lanes::sub32(isum, Lanes::template shl32<kShift>(side));
    return Lanes::fma(Lanes::to_float(exact), Lanes::mul(d, da), acc);
  }
};

}  // namespace
}  // namespace TALLY_KERNELS_TIER
