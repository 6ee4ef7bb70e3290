#pragma once
// The linear kernels of the formats with blocks of 256, the same on every tier above scalar: a tile is 32
// rows x up to 32 tokens, two tiles of the panel, one 32-bit lane a row.
//
// The codes of a sub-block of 32 k are unpacked once into eight registers for each register of rows (register
// g: k = 4 g .. 4 g + 3) and meet the tokens one after the other. So a tile of any width runs the same code,
// and wide ones share the unpacking. Of 32 registers, 16 hold codes: all 32 rows on AVX-512, where one
// broadcast of four activations feeds two dots, which keeps the load ports below the dot ports. Of 16
// registers, 8 hold codes: 8 rows at a time, in four passes over a block that stays in L1. The integer sums
// of a block wait in L1 between two sub-blocks: two memory operations against some twenty of arithmetic.
//
// A scale is applied to integers, as each instruction set does it best:
//   without vpdpbusd  vpmaddubsw makes 16-bit sums of two products, of which as many are added as 16 bits
//                     hold (chain); then vpmaddwd multiplies both halves of a lane by the scale and adds
//                     them, so that the scale costs nothing.
//   vpdpbusd, 16 k    vpdpwssd multiplies and adds, if a sum of 16 products fits 16 bits: the scale lies in
//                     the low half of the lane, the high half of the sum meets 0. Else vpmulld.
//   vpdpbusd, 32 k    vpmulld. Two chains of 16 k and two vpdpwssd would be one operation less on Intel,
//                     where vpmulld is two, and one more on the two pipes of AMD that multiply.
//
// Offsets of unsigned codes, and minimums, come once a block from the panel's sums of activations: a product
// with the scales or minimums (side), or what the sums of products begin with (kStarts).

#include "kernels/super_block/rows.h"

namespace TALLY_KERNELS_TIER {
namespace {

// Registers of rows that meet a token together.
constexpr size_t kTogether = Lanes::kRows == 16 ? 2 : 1;
constexpr size_t kPasses = kGroupRows / (kTogether * Lanes::kRows);
constexpr size_t kSubBlocks = 8;
constexpr size_t kSuperBlockK = 256;

template <class Format>
constexpr size_t kScales = 32 / Format::kElements;  // a sub-block

// The largest sum of 2 n products in a 16-bit half of a lane, n = 4-byte groups of k, fits it.
template <class Format>
constexpr bool fits_16_bits(size_t n) {
  return n * 2 * 127 * Format::kMaxCode <= 32767;
}

template <class Format>
constexpr ScaleForm scale_form() {
  if (!Lanes::kVnni) return ScaleForm::kBothHalves;
  return Format::kElements == 16 && fits_16_bits<Format>(8) ? ScaleForm::kLowHalf : ScaleForm::kLane;
}

// Registers of 16-bit sums of two products that are added before they are widened.
template <class Format>
constexpr size_t chain() {
  size_t n = 8 / kScales<Format>;
  while (!fits_16_bits<Format>(n)) n /= 2;
  return n;
}

template <class Format>
struct SubBlock {
  Integers codes[8];
  Integers scale[kScales<Format>];
};

// Where the scale is applied to sums of any size, they begin with what the offset of the codes takes off: a
// load for 32 rows, where the side takes a multiplication for 16.
template <class Format>
constexpr bool kStarts =
    Format::kShift != 0 && Format::kElements == 16 && scale_form<Format>() == ScaleForm::kLane;

// The integer sums of a block: [register of rows][token].
using Sums = Integers[kTogether][kPanelTile];

// A panel tile in one block.
struct BlockTile {
  Int256Block x;
  size_t tokens;
  alignas(64) int32_t start[kPanelTile][16];  // with kStarts: of each 16 k
  Sums sums;
};

template <class Format>
TALLY_INLINE inline void set_starts(BlockTile& tile) {
  for (size_t t = 0; t < tile.tokens; ++t)
    for (size_t g = 0; g < 16; g += Lanes::kRows) {
      const Integers sum = Lanes::load_s16(tile.x.sum16 + 16 * t + g);
      const Integers offset = Lanes::template shl32<Format::kShift>(sum);
      Lanes::store32(tile.start[t] + g, Lanes::sub32(Lanes::zero(), offset));
    }
}

// Adds the scaled products of a token's 32 activations of sub-block `sub` to its sums, which begin with the
// first.
#ifdef TALLY_LANES_VNNI

// Chains of four dots: of eight, the CPU's queues cannot hold as many tokens as it takes to hide the latency.
template <class Format, bool kFirst>
TALLY_INLINE inline void add_products(const SubBlock<Format>* w, BlockTile& tile, size_t sub, size_t t) {
  const int8_t* q = tile.x.q + kSuperBlockK * t + 32 * sub;
  Integers dot[kTogether][2];
#pragma GCC unroll 8
  for (size_t g = 0; g < 8; ++g) {
    const Integers four = Lanes::broadcast4(q + 4 * g);
    Integers start = Lanes::zero();
    if constexpr (kStarts<Format>) start = Lanes::broadcast4(&tile.start[t][2 * sub + g / 4]);
#pragma GCC unroll 2
    for (size_t r = 0; r < kTogether; ++r)
      dot[r][g / 4] = Lanes::dpbusd(g % 4 == 0 ? start : dot[r][g / 4], w[r].codes[g], four);
  }
#pragma GCC unroll 2
  for (size_t r = 0; r < kTogether; ++r) {
    Integers sum = kFirst ? Lanes::zero() : tile.sums[r][t];
    if constexpr (kScales<Format> == 1) dot[r][0] = Lanes::add32(dot[r][0], dot[r][1]);
#pragma GCC unroll 2
    for (size_t i = 0; i < kScales<Format>; ++i) {
      if constexpr (scale_form<Format>() == ScaleForm::kLowHalf)
        sum = Lanes::dot_pairs(sum, dot[r][i], w[r].scale[i]);
      else
        sum = Lanes::add32(sum, Lanes::mul32(dot[r][i], w[r].scale[i]));
    }
    tile.sums[r][t] = sum;
  }
}

#else

template <class Format, bool kFirst>
TALLY_INLINE inline void add_products(const SubBlock<Format>* w, BlockTile& tile, size_t sub, size_t t) {
  const int8_t* q = tile.x.q + kSuperBlockK * t + 32 * sub;
  constexpr size_t kChain = chain<Format>();
  Integers sum[kTogether];
#pragma GCC unroll 8
  for (size_t begin = 0; begin < 8; begin += kChain) {
    Integers part[kTogether];
#pragma GCC unroll 8
    for (size_t g = begin; g < begin + kChain; ++g) {
      const Integers four = Lanes::broadcast4(q + 4 * g);
#pragma GCC unroll 2
      for (size_t r = 0; r < kTogether; ++r) {
        const Integers products = Lanes::maddubs(w[r].codes[g], four);
        part[r] = g == begin ? products : Lanes::add16(part[r], products);
      }
    }
#pragma GCC unroll 2
    for (size_t r = 0; r < kTogether; ++r) {
      const Integers scaled = Lanes::madd16(part[r], w[r].scale[begin * kScales<Format> / 8]);
      sum[r] = begin == 0 ? scaled : Lanes::add32(sum[r], scaled);
    }
  }
#pragma GCC unroll 2
  for (size_t r = 0; r < kTogether; ++r)
    tile.sums[r][t] = kFirst ? sum[r] : Lanes::add32(tile.sums[r][t], sum[r]);
}

#endif

// Adds one sub-block, or one plane of it, to every token of the tiles. Where decoding instructions is the
// bound, two tokens a turn halve what the loop itself costs, one instruction in eight. The odd token comes
// first: behind the loop it would make gcc 12 save the codes on the stack.
template <class Format, size_t kPlane, bool kFirst>
TALLY_INLINE inline void add_sub_block(const Rows* rows, size_t sub, BlockTile* tiles, size_t count) {
  SubBlock<Format> w[kTogether];
#pragma GCC unroll 2
  for (size_t r = 0; r < kTogether; ++r) {
    Format::template load<kPlane>(rows[r].words(Format::Unit::kSubBlock * sub), w[r].codes);
#pragma GCC unroll 2
    for (size_t i = 0; i < kScales<Format>; ++i)
      w[r].scale[i] =
          Format::template scale<kPlane, scale_form<Format>()>(rows[r], kScales<Format> * sub + i);
  }
  constexpr bool kTwoATurn = !Lanes::kVnni && chain<Format>() == 8;
  for (BlockTile* tile = tiles; tile < tiles + count; ++tile) {
    size_t t = 0;
    if (kTwoATurn && tile->tokens % 2 != 0) add_products<Format, kFirst>(w, *tile, sub, t++);
    for (; t < tile->tokens; ++t) {
      add_products<Format, kFirst>(w, *tile, sub, t);
      if constexpr (kTwoATurn) add_products<Format, kFirst>(w, *tile, sub, ++t);
    }
  }
}

// The float chain of one block for a register of rows.
template <class Format>
TALLY_INLINE inline void add_block(Rows rows, const BlockTile& tile, const Integers* sums, Floats* acc) {
  constexpr size_t kPairs = kStarts<Format> ? 0 : 128 / Format::kElements;
  const typename Format::Factors factors = Format::factors(rows);
  Integers side[kPairs + 1];
#pragma GCC unroll 8
  for (size_t j = 0; j < kPairs; ++j) side[j] = Format::side(rows, j);
  for (size_t t = 0; t < tile.tokens; ++t) {
    const int16_t* x_sums = Format::kElements == 16 ? tile.x.sum16 + 16 * t : tile.x.sum32 + 8 * t;
    Integers side_sum = Lanes::zero();
#pragma GCC unroll 8
    for (size_t j = 0; j < kPairs; ++j)
      side_sum = Lanes::dot_pairs(side_sum, side[j], Lanes::broadcast4(x_sums + 2 * j));
    acc[t] = Format::add(factors, sums[t], side_sum, Lanes::set_f(tile.x.d[t]), acc[t]);
  }
}

// Step `step` of a block's kPasses * kSubBlocks asks for its share of what lies `ahead` behind the block.
template <class Format>
TALLY_INLINE inline void prefetch_share(const uint8_t* block, size_t ahead, size_t step) {
  constexpr size_t kShare = 2 * Format::Unit::kBytes / (kPasses * kSubBlocks);
  if (ahead == 0) return;
  const uint8_t* p = block + ahead + kShare * step;
#pragma GCC unroll 16
  for (size_t offset = 0; offset < kShare; offset += 64)
    _mm_prefetch(reinterpret_cast<const char*>(p + offset), _MM_HINT_T0);
}

// Of a panel tile: [pass][register of rows][token].
using Accumulators = Floats[kPasses][kTogether][kPanelTile];

// One block of k for all rows of the group.
template <class Format>
TALLY_INLINE inline void add_rows(const uint8_t* block, size_t prefetch, BlockTile* tiles, size_t count,
                                  Accumulators* acc) {
  for (size_t pass = 0; pass < kPasses; ++pass) {
    Rows rows[kTogether];
#pragma GCC unroll 2
    for (size_t r = 0; r < kTogether; ++r) {
      const size_t row = (kTogether * pass + r) * Lanes::kRows;
      rows[r] = {block + row / 16 * Format::Unit::kBytes, row % 16};
    }
    prefetch_share<Format>(block, prefetch, kSubBlocks * pass);
    add_sub_block<Format, 0, true>(rows, 0, tiles, count);
    if constexpr (Format::kPlanes == 2) add_sub_block<Format, 1, false>(rows, 0, tiles, count);
    for (size_t sub = 1; sub < kSubBlocks; ++sub) {
      prefetch_share<Format>(block, prefetch, kSubBlocks * pass + sub);
      add_sub_block<Format, 0, false>(rows, sub, tiles, count);
      if constexpr (Format::kPlanes == 2) add_sub_block<Format, 1, false>(rows, sub, tiles, count);
    }
    for (size_t i = 0; i < count; ++i)
#pragma GCC unroll 2
      for (size_t r = 0; r < kTogether; ++r)
        add_block<Format>(rows[r], tiles[i], tiles[i].sums[r], acc[i][pass][r]);
  }
}

// Writes a tile's accumulators. Rows that do not exist are left alone.
TALLY_INLINE inline void store_tile(const TileArgs& args, size_t tokens, const Accumulators& acc,
                                    float* out) {
  for (size_t i = 0; i < kPasses * kTogether && i * Lanes::kRows < args.rows; ++i)
#pragma GCC unroll 1  // not sixteen times
    for (size_t t = 0; t < tokens; ++t)
      Lanes::write(out + t * args.out_stride + i * Lanes::kRows, acc[i / kTogether][i % kTogether][t],
                   args.rows - i * Lanes::kRows, args.stream);
}

// kTokens: 0, as many as the tiles have, or 1, the only one, whose sums of a block need no memory.
template <class Format, size_t kTokens>
void super_block_tile(const TileArgs& args) {
  constexpr size_t kTiles = kTokens == 1 ? 1 : 2;
  const size_t count = kTokens != 1 && args.next.tokens != 0 ? 2 : 1;
  const PanelTile panel[2] = {args.tile, args.next};
  BlockTile tiles[kTiles];
  Accumulators acc[kTiles];
  for (size_t i = 0; i < count; ++i) {
    tiles[i].tokens = kTokens == 0 ? panel[i].tokens : kTokens;
    if (tiles[i].tokens == 0) __builtin_unreachable();  // no test before each of the loops
    for (auto& pass : acc[i])
      for (auto& rows : pass)
        for (size_t t = 0; t < tiles[i].tokens; ++t) rows[t] = Lanes::zero_f();
  }
  const auto* block = reinterpret_cast<const uint8_t*>(args.group);
  for (size_t b = 0; b < args.k / kSuperBlockK; ++b, block += 2 * Format::Unit::kBytes) {
    for (size_t i = 0; i < count; ++i) {
      tiles[i].x = int256_block(panel[i].bytes, panel[i].tokens, b);
      if constexpr (kStarts<Format>) set_starts<Format>(tiles[i]);
    }
    add_rows<Format>(block, args.prefetch, tiles, count, acc);
  }
  for (size_t i = 0; i < count; ++i)
    store_tile(args, tiles[i].tokens, acc[i], args.out + i * kPanelTile * args.out_stride);
}

template <class Format>
TALLY_INLINE inline void run_super_blocks(const LinearArgs& args) {
  const size_t blocks = args.k / kSuperBlockK;
  run_tiles(args, {blocks * 2 * Format::Unit::kBytes, blocks * kInt256BlockBytes,
                   args.tokens == 1 ? super_block_tile<Format, 1> : super_block_tile<Format, 0>, 2});
}

}  // namespace
}  // namespace TALLY_KERNELS_TIER
