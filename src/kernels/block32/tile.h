#pragma once
// The loop of the formats with blocks of 32, for every tier: a tile is 32 rows x up to 16 tokens, one lane a
// row.
//
// Codes are unpacked once and meet the tokens one after the other. Registers hold two sets of them, so that
// one broadcast of four activations feeds two dots (loads are the first wall of the 256-bit tiers and the
// second of the others): the same half block of two slices of kRows rows, or, with 32 registers and vpdpbusd,
// the whole block. The sums of the first half and the f32 accumulators live in L1, each touched once a block.
// A single token is the other way round: its activations stay in registers and the codes pass by.
//
// Codes are unsigned and kOffset above the weights' integers; kOffset times the sum of the activations comes
// off. vpdpbusd takes them as they are. vpmaddubsw adds pairs in 16 bits, and what is added to them must fit
// there: codes to 15 over the whole block (16 * 15 * 127 = 30,480), codes to 31 over half of it (31,496), and
// a larger code is taken apart into its nibbles, 16 h + l: two planes of codes to 15, which are the two sets.
//
// A Format has
//   kUnit, kScale, kMin             bytes; offset of the f16 scales, of the f16 minimums (0: none)
//   kMaxCode, kOffset
//   unpack<h>(rows, codes)          half h of a slice, k = 16 h .. 16 h + 15; its first byte is at `rows`
//   unpack_planes<h>(rows, h, l)    if the planes are had for less than from unpack
//   scales(unit, row)               of kRows rows from `row` on, if they are not f16
// Internal linkage: see panel.h. Include lanes256.h or lanes512.h first.

#include "kernels/block32/sums.h"

namespace TALLY_KERNELS_TIER {
namespace {

using I = Lanes::I;
using Half = I[4];  // codes or activations of 16 k, four a lane

template <class Format>
constexpr bool kTwoPlanes = !Lanes::kVnni && Format::kMaxCode > 31;

// ---- A slice of a block ----

template <class Format>
struct Slice {
  const uint8_t* unit;
  size_t row;  // its first row in the unit
  TALLY_INLINE Slice(const uint8_t* block, size_t s)
      : unit(block + s * Lanes::kRows / 16 * Format::kUnit), row(s * Lanes::kRows % 16) {}

  TALLY_INLINE const uint8_t* codes() const { return unit + 4 * row; }
  TALLY_INLINE F scales() const {
    if constexpr (requires { Format::scales(unit, row); })
      return Format::scales(unit, row);
    else
      return Lanes::load_f16(unit + Format::kScale + 2 * row);
  }
  TALLY_INLINE F minimums() const {
    if constexpr (Format::kMin == 0)
      return Lanes::zero_f();
    else
      return Lanes::load_f16(unit + Format::kMin + 2 * row);
  }
};

template <class Format, size_t h>
TALLY_INLINE inline void unpack_planes(const uint8_t* rows, Half& high, Half& low) {
  if constexpr (requires { Format::template unpack_planes<h>(rows, high, low); }) {
    Format::template unpack_planes<h>(rows, high, low);
  } else {
    const I mask = Lanes::set8(15);
    Format::template unpack<h>(rows, low);
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      high[j] = Lanes::bit_and(Lanes::shr16<4>(low[j]), mask);
      low[j] = Lanes::bit_and(low[j], mask);
    }
  }
}

TALLY_INLINE inline void load_activations(const int8_t* q, Half& x) {
#pragma GCC unroll 4
  for (size_t j = 0; j < 4; ++j) x[j] = Lanes::broadcast4(q + 4 * j);
}

// ---- The integer sum of a block, half after half ----

#ifdef TALLY_LANES_VNNI
TALLY_INLINE inline I dots(I sum, const Half& codes, const Half& x) {
#pragma GCC unroll 4
  for (size_t j = 0; j < 4; ++j) sum = Lanes::dpbusd(sum, codes[j], x[j]);
  return sum;
}
#endif

// In 16 bits.
TALLY_INLINE inline I chain(const Half& codes, const Half& x) {
  I sum = Lanes::maddubs(codes[0], x[0]);
#pragma GCC unroll 3
  for (size_t j = 1; j < 4; ++j) sum = Lanes::add16(sum, Lanes::maddubs(codes[j], x[j]));
  return sum;
}

// `start` is what the sum begins with.
template <class Format>
TALLY_INLINE inline I first_half(const Half& codes, const Half& x, [[maybe_unused]] I start) {
#ifdef TALLY_LANES_VNNI
  return dots(start, codes, x);
#else
  const I sum = chain(codes, x);
  if constexpr (Format::kMaxCode <= 15 || kTwoPlanes<Format>)
    return sum;
  else
    return Lanes::add32(Lanes::madd16(sum, Lanes::set16(1)), start);
#endif
}

template <class Format>
TALLY_INLINE inline I second_half(const Half& codes, const Half& x, I first, [[maybe_unused]] I start) {
#ifdef TALLY_LANES_VNNI
  return dots(first, codes, x);
#else
  const I sum = chain(codes, x), ones = Lanes::set16(1);
  if constexpr (Format::kMaxCode <= 15)
    return Lanes::add32(Lanes::madd16(Lanes::add16(sum, first), ones), start);
  else
    return Lanes::add32(Lanes::madd16(sum, ones), first);
#endif
}

// The same of both planes.
TALLY_INLINE inline I both_planes(const Half (&planes)[2], const Half& x, const I (&first)[2], I start) {
  const I high = Lanes::add16(chain(planes[0], x), first[0]),
          low = Lanes::add16(chain(planes[1], x), first[1]);
  const I sum = Lanes::add32(Lanes::madd16(high, Lanes::set16(16)), Lanes::madd16(low, Lanes::set16(1)));
  return Lanes::add32(sum, start);
}

// ---- Several tokens ----

// What a block asks of the tokens.
struct BlockTokens {
  const int8_t* q;  // [tokens][32]
  const float* d;
  size_t tokens;
  alignas(64) int32_t start[kPanelTile];  // -kOffset times the sum of the activations
  alignas(64) float min[kPanelTile];      // what the minimums are multiplied with
};

template <class Format>
TALLY_INLINE inline void set_tokens(const Int32Block& x, size_t tokens, BlockTokens* block) {
  block->q = x.q, block->d = x.d, block->tokens = tokens;
#pragma GCC unroll 2
  for (size_t t = 0; t < kPanelTile; t += Lanes::kRows) {
    const size_t count = tokens > t ? tokens - t : 0;
    const I sum = Lanes::load_first(x.sum + t, count);
    if constexpr (Format::kOffset != 0)
      Lanes::store32(block->start + t, Lanes::mul32(sum, Lanes::set32(-Format::kOffset)));
    if constexpr (Format::kMin != 0) {
      const F d = Lanes::as_float(Lanes::load_first(x.d + t, count));
      Lanes::store(block->min + t, Lanes::mul(d, Lanes::to_float(sum)), Lanes::kRows);
    }
  }
}

template <class Format>
TALLY_INLINE inline I start_of(const BlockTokens& x, size_t t) {
  if constexpr (Format::kOffset == 0)
    return Lanes::zero();
  else
    return Lanes::broadcast4(x.start + t);
}

// A block's share of the f32 sum: the integers, then the minimums.
template <class Format>
TALLY_INLINE inline void accumulate(I c, F d, F m, const BlockTokens& x, size_t t, F* sum) {
  F f = Lanes::fma(Lanes::to_float(c), Lanes::mul(d, Lanes::set_f(x.d[t])), *sum);
  if constexpr (Format::kMin != 0) f = Lanes::fma(m, Lanes::set_f(x.min[t]), f);
  *sum = f;
}

// Half h of the two sets of codes: of both slices or, of the first, both planes.
template <class Format, size_t h>
TALLY_INLINE inline void unpack_two(const Slice<Format> (&slices)[2], Half (&codes)[2]) {
  if constexpr (kTwoPlanes<Format>) {
    unpack_planes<Format, h>(slices[0].codes(), codes[0], codes[1]);
  } else {
    Format::template unpack<h>(slices[0].codes(), codes[0]);
    Format::template unpack<h>(slices[1].codes(), codes[1]);
  }
}

// Slices s and s + 1 of a block, all tokens; of two planes, slice s.
template <class Format>
TALLY_INLINE inline void two_sets(const uint8_t* block, size_t s, const BlockTokens& x, Sums* sums) {
  const Slice<Format> slices[2] = {{block, s}, {block, kTwoPlanes<Format> ? s : s + 1}};
  const F d[2] = {slices[0].scales(), slices[1].scales()};
  const F m[2] = {slices[0].minimums(), slices[1].minimums()};
  Half codes[2], q;
  I first[kPanelTile][2];
  unpack_two<Format, 0>(slices, codes);
  for (size_t t = 0; t < x.tokens; ++t) {
    load_activations(x.q + 32 * t, q);
    const I start = start_of<Format>(x, t);
#pragma GCC unroll 2
    for (size_t i = 0; i < 2; ++i) first[t][i] = first_half<Format>(codes[i], q, start);
  }
  unpack_two<Format, 1>(slices, codes);
  for (size_t t = 0; t < x.tokens; ++t) {
    load_activations(x.q + 32 * t + 16, q);
    const I start = start_of<Format>(x, t);
    if constexpr (kTwoPlanes<Format>) {
      accumulate<Format>(both_planes(codes, q, first[t], start), d[0], m[0], x, t, sums[s] + t);
    } else {
#pragma GCC unroll 2
      for (size_t i = 0; i < 2; ++i)
        accumulate<Format>(second_half<Format>(codes[i], q, first[t][i], start), d[i], m[i], x, t,
                           sums[s + i] + t);
    }
  }
}

// The same where 16 registers of codes are at hand: both slices and both halves.
template <class Format>
TALLY_INLINE inline void whole_block(const uint8_t* block, const BlockTokens& x, Sums* sums) {
  const Slice<Format> slices[2] = {{block, 0}, {block, 1}};
  const F d[2] = {slices[0].scales(), slices[1].scales()};
  const F m[2] = {slices[0].minimums(), slices[1].minimums()};
  Half codes[2][2], q[2];
  unpack_two<Format, 0>(slices, codes[0]);
  unpack_two<Format, 1>(slices, codes[1]);
  for (size_t t = 0; t < x.tokens; ++t) {
    load_activations(x.q + 32 * t, q[0]);
    load_activations(x.q + 32 * t + 16, q[1]);
    const I start = start_of<Format>(x, t);
#pragma GCC unroll 2
    for (size_t i = 0; i < 2; ++i) {
      const I first = first_half<Format>(codes[0][i], q[0], start);
      accumulate<Format>(second_half<Format>(codes[1][i], q[1], first, start), d[i], m[i], x, t, sums[i] + t);
    }
  }
}

// ---- A tile ----

template <class Format>
void tile_of_tokens(const TileArgs& a) {
  const size_t tokens = a.tile.tokens;
  Sums sums[kSlices];
  clear_tile(tokens, sums);
  const uint8_t* block = reinterpret_cast<const uint8_t*>(a.group);
  for (size_t b = 0; b < a.k / 32; ++b, block += 2 * Format::kUnit) {
    BlockTokens x;
    set_tokens<Format>(int32_block(a.tile.bytes, tokens, b), tokens, &x);
    prefetch(block + a.prefetch, 2 * Format::kUnit);
    if constexpr (Lanes::kVnni && kSlices == 2)
      whole_block<Format>(block, x, sums);
    else
      for (size_t s = 0; s < kSlices; s += kTwoPlanes<Format> ? 1 : 2) two_sets<Format>(block, s, x, sums);
  }
  store_tile(a, sums);
}

// The integer sum of a slice with one token's activations.
template <class Format>
TALLY_INLINE inline I product(const uint8_t* rows, const Half (&q)[2], I start) {
  if constexpr (kTwoPlanes<Format>) {
    Half planes[2];
    unpack_planes<Format, 0>(rows, planes[0], planes[1]);
    const I first[2] = {first_half<Format>(planes[0], q[0], start),
                        first_half<Format>(planes[1], q[0], start)};
    unpack_planes<Format, 1>(rows, planes[0], planes[1]);
    return both_planes(planes, q[1], first, start);
  } else {
    Half codes[2];
    Format::template unpack<0>(rows, codes[0]);
    Format::template unpack<1>(rows, codes[1]);
    return second_half<Format>(codes[1], q[1], first_half<Format>(codes[0], q[0], start), start);
  }
}

template <class Format>
void tile_of_one(const TileArgs& a) {
  F sums[kSlices];
#pragma GCC unroll 4
  for (size_t s = 0; s < kSlices; ++s) sums[s] = Lanes::zero_f();
  const uint8_t* block = reinterpret_cast<const uint8_t*>(a.group);
  for (size_t b = 0; b < a.k / 32; ++b, block += 2 * Format::kUnit) {
    const Int32Block x = int32_block(a.tile.bytes, 1, b);
    prefetch(block + a.prefetch, 2 * Format::kUnit);
    Half q[2];
    load_activations(x.q, q[0]), load_activations(x.q + 16, q[1]);
    const I start = Lanes::set32(-Format::kOffset * x.sum[0]);
    const F d = Lanes::set_f(x.d[0]), min = Lanes::set_f(x.d[0] * static_cast<float>(x.sum[0]));
#pragma GCC unroll 4
    for (size_t s = 0; s < kSlices; ++s) {
      const Slice<Format> slice(block, s);
      const F c = Lanes::to_float(product<Format>(slice.codes(), q, start));
      sums[s] = Lanes::fma(c, Lanes::mul(slice.scales(), d), sums[s]);
      if constexpr (Format::kMin != 0) sums[s] = Lanes::fma(slice.minimums(), min, sums[s]);
    }
  }
#pragma GCC unroll 4
  for (size_t s = 0; s < kSlices; ++s)
    if (s * Lanes::kRows < a.rows) Lanes::store(a.out + s * Lanes::kRows, sums[s], a.rows - s * Lanes::kRows);
}

template <class Format>
void block32_tile(const TileArgs& a) {
  if (a.tile.tokens == 1)
    tile_of_one<Format>(a);
  else
    tile_of_tokens<Format>(a);
}

template <class Format>
void linear_block32(const LinearArgs& a) {
  run_tiles(a, {a.k / 32 * 2 * Format::kUnit, a.k / 32 * kInt32BlockBytes, block32_tile<Format>, 1});
}

}  // namespace
}  // namespace TALLY_KERNELS_TIER
