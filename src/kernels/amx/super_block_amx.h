#pragma once
// The AMX kernel of the types with blocks of 256, exact (their definitions: <family>/scalar.cc).
//
// One int32 product over all 256 k of a block has to contain the sub-blocks' scales, and scale * code needs
// more than a byte. So a block is unpacked into two byte planes, high and low, whose products are summed
// apart and joined once a block:
// - ScaleSplit: scale = 8 h + l, planes h * code and l * code, isum = 8 H + L. Both are bytes (Q4_K: at most
//   7 * 15, Q5_K: 7 * 31), so one 16-bit multiply makes two of them.
// - ProductSplit: scale * value = 256 h + l, the two bytes of the 16-bit product, h signed and l not,
//   isum = 256 H + L. Q6_K: |product| <= 4096, IQ4_XS: 4064.
// |H|, |L| <= 255 * 127 * 256 = 8.3 M, and isum fits int32 by the definition: exact.
//
// A plane is [64 k-groups][16 rows][4 k]: 16 k-groups of it are one tile. Two panel tiles x one unit x two
// planes, or one panel tile x two units x two planes, keep four chains of products going, which covers the
// latency of the tile unit. While it works on one job the vector units finish the one before, a quarter
// behind each of its four steps of 64 k: a whole job's vector instructions are more than the CPU looks ahead.

#include "kernels/amx/walk.h"
#include "kernels/super_block/rows.h"

namespace TALLY_KERNELS_TIER {
namespace {

constexpr size_t kPlane = 64 * 64;

// One unit's block under one panel tile.
struct SuperBlockJob {
  const uint8_t* unit;
  Int256Block x;
  size_t tokens;
  float* acc;  // [token][kGroupRows]
};

// The products of a job, [16 tokens][16 rows] each.
struct Taken {
  const int32_t *high, *low;
};

template <class Format>
struct ScaleSplit {
  using Unit = typename Format::Unit;
  static_assert(Format::kPlanes == 1 && Format::kElements == 32 && 7 * Format::kMaxCode < 256);

  static TALLY_INLINE void expand(const uint8_t* unit, size_t sub, uint8_t* high, uint8_t* low) {
    __m512i codes[8];
    Format::template load<0>(unit + Unit::kSubBlock * sub, codes);
    const __m512i scale = Format::template scale<0, ScaleForm::kBothHalves>({unit, 0}, sub);
    const __m512i h = _mm512_srli_epi16(scale, 3), l = _mm512_and_si512(scale, _mm512_set1_epi16(7));
#pragma GCC unroll 8
    for (size_t g = 0; g < 8; ++g) {
      _mm512_store_si512(high + 64 * g, _mm512_mullo_epi16(codes[g], h));
      _mm512_store_si512(low + 64 * g, _mm512_mullo_epi16(codes[g], l));
    }
  }

  template <int kC, int kA, int kB>
  static TALLY_INLINE void dot_high(Tiles& tiles) {
    tiles.dot_su<kC, kA, kB>();
  }

  static TALLY_INLINE void add(const SuperBlockJob& job, const Taken& products, size_t tokens) {
    const Rows rows{job.unit, 0};
    const typename Format::Factors factors = Format::factors(rows);
    __m512i min[4];
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) min[j] = Format::side(rows, j);
#pragma GCC unroll 8
    for (size_t t = 0; t < tokens; ++t) {
      const __m512i isum = _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(products.high + 16 * t), 3),
                                            _mm512_load_si512(products.low + 16 * t));
      const int16_t* sum32 = job.x.sum32 + 8 * t;
      __m512i msum = _mm512_setzero_si512();
#pragma GCC unroll 4
      for (size_t j = 0; j < 4; ++j) msum = Lanes::dot_pairs(msum, min[j], Lanes::broadcast4(sum32 + 2 * j));
      float* acc = job.acc + kGroupRows * t;
      _mm512_store_ps(acc, Format::add(factors, isum, msum, _mm512_set1_ps(job.x.d[t]), _mm512_load_ps(acc)));
    }
  }
};

// kOffset: what makes a value of a code.
template <class Format, int16_t kOffset>
struct ProductSplit {
  using Unit = typename Format::Unit;
  static_assert(Format::kPlanes == 1 && 128 * Format::kMaxCode < 32768);

  static TALLY_INLINE void expand(const uint8_t* unit, size_t sub, uint8_t* high, uint8_t* low) {
    constexpr size_t kScales = 32 / Format::kElements, kGroups = 8 / kScales;
    __m512i codes[8];
    Format::template load<0>(unit + Unit::kSubBlock * sub, codes);
    const __m512i low_byte = _mm512_set1_epi16(0xFF);
#pragma GCC unroll 2
    for (size_t i = 0; i < kScales; ++i) {
      const __m512i scale = Format::template scale<0, ScaleForm::kBothHalves>({unit, 0}, kScales * sub + i);
      const __m512i offset = _mm512_mullo_epi16(scale, _mm512_set1_epi16(kOffset));
      // vpmaddubsw with a scale in every other byte: the products of the codes of even and of odd k alone.
      const __m512i of_even = _mm512_and_si512(scale, low_byte), of_odd = _mm512_slli_epi16(scale, 8);
#pragma GCC unroll 8
      for (size_t g = kGroups * i; g < kGroups * (i + 1); ++g) {
        const __m512i even = _mm512_sub_epi16(_mm512_maddubs_epi16(codes[g], of_even), offset);
        const __m512i odd = _mm512_sub_epi16(_mm512_maddubs_epi16(codes[g], of_odd), offset);
        _mm512_store_si512(high + 64 * g,
                           _mm512_or_si512(_mm512_srli_epi16(even, 8), _mm512_andnot_si512(low_byte, odd)));
        _mm512_store_si512(low + 64 * g,
                           _mm512_or_si512(_mm512_and_si512(even, low_byte), _mm512_slli_epi16(odd, 8)));
      }
    }
  }

  template <int kC, int kA, int kB>
  static TALLY_INLINE void dot_high(Tiles& tiles) {
    tiles.dot_ss<kC, kA, kB>();
  }

  static TALLY_INLINE void add(const SuperBlockJob& job, const Taken& products, size_t tokens) {
    const __m512 d = Format::factors({job.unit, 0});
#pragma GCC unroll 8
    for (size_t t = 0; t < tokens; ++t) {
      const __m512i isum = _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(products.high + 16 * t), 8),
                                            _mm512_load_si512(products.low + 16 * t));
      float* acc = job.acc + kGroupRows * t;
      const __m512 factor = _mm512_mul_ps(d, _mm512_set1_ps(job.x.d[t]));
      _mm512_store_ps(acc, _mm512_fmadd_ps(_mm512_cvtepi32_ps(isum), factor, _mm512_load_ps(acc)));
    }
  }
};

// Tiles 0..3: products; 4, 5: activations [tokens][64 k]; 6, 7: a plane's [16 k-groups][16 rows][4 k].
inline TileConfig super_block_tiles(size_t tokens) {
  TileConfig config;
  for (size_t i = 0; i < 6; ++i) config.shape(i, tokens, 64);
  for (size_t i = 6; i < 8; ++i) config.shape(i, 16, 64);
  return config;
}

template <class Split>
class SuperBlockKernel {
 public:
  using Unit = typename Split::Unit;

  // A single panel tile of fewer than 16 tokens makes tiles of as many rows; the last one of several is
  // padded, so that one configuration serves all.
  explicit SuperBlockKernel(const LinearArgs& a)
      : k_(a.k),
        ahead_(a.tuning.prefetch_bytes),
        tile_tokens_(a.tokens < kPanelTile ? a.tokens : kPanelTile),
        tiles_(super_block_tiles(tile_tokens_)) {
    std::memset(padded_, 0, sizeof padded_);
  }

  void add_group(const uint8_t* weights, const Chunk& chunk, Sums& sums) {
    const size_t tiles = chunk.tiles();
    for (size_t b = 0; b < k_ / 256; ++b, weights += 2 * Unit::kBytes) {
      Operand last = operand(chunk, tiles - 1, b);
      if (last.tokens < tile_tokens_) {
        std::memcpy(padded_, last.x.q, last.tokens * 256);
        last.x.q = padded_;
      }
      expand(weights);
      size_t i = 0;
      for (; i + 1 < tiles; i += 2) {
        const Operand first = operand(chunk, i, b), second = i + 2 < tiles ? operand(chunk, i + 1, b) : last;
        float* acc = sums.token[i * kPanelTile];
        for (size_t u = 0; u < 2; ++u) {
          multiply_two_tiles(first.x.q, second.x.q, u);
          take(job(first, weights, u, acc), job(second, weights, u, acc + kPanelTile * kGroupRows));
        }
      }
      if (i < tiles) {
        float* acc = sums.token[i * kPanelTile];
        multiply_two_units(last.x.q);
        take(job(last, weights, 0, acc), job(last, weights, 1, acc));
      }
    }
    for (size_t step = 0; step < kSteps; ++step) finish(step);
    waiting_[0].tokens = waiting_[1].tokens = 0;
  }

 private:
  static constexpr size_t kSteps = 4, kStepTokens = 8;  // a step: 64 k of a job, 8 tokens of the one before

  struct Operand {
    Int256Block x;
    size_t tokens;
  };
  static TALLY_INLINE Operand operand(const Chunk& chunk, size_t i, size_t b) {
    const PanelTile tile = chunk.tile(i);
    return {int256_block(tile.bytes, tile.tokens, b), tile.tokens};
  }
  static TALLY_INLINE SuperBlockJob job(const Operand& x, const uint8_t* block, size_t u, float* acc) {
    return {block + u * Unit::kBytes, x.x, x.tokens, acc + 16 * u};
  }

  void expand(const uint8_t* block) {
    constexpr size_t kShare = Unit::kBytes / 8;
    for (size_t u = 0; u < 2; ++u)
      for (size_t sub = 0; sub < 8; ++sub) {
        const uint8_t* unit = block + u * Unit::kBytes;
        prefetch(unit + kShare * sub, kShare, ahead_);
        Split::expand(unit, sub, high_[u] + 512 * sub, low_[u] + 512 * sub);
      }
  }

  // Products 0, 1: high and low of the first tile; 2, 3: of the second.
  TALLY_INLINE void multiply_two_tiles(const int8_t* first, const int8_t* second, size_t u) {
    zero();
#pragma GCC unroll 4
    for (size_t step = 0; step < kSteps; ++step) {
      tiles_.template load<4>(first + 64 * step, 256);
      tiles_.template load<6>(high_[u] + 1024 * step, 64);
      Split::template dot_high<0, 4, 6>(tiles_);
      tiles_.template load<7>(low_[u] + 1024 * step, 64);
      tiles_.template dot_su<1, 4, 7>();
      tiles_.template load<5>(second + 64 * step, 256);
      Split::template dot_high<2, 5, 6>(tiles_);
      tiles_.template dot_su<3, 5, 7>();
      finish(step);
    }
  }
  // Products 0, 1: high and low of the first unit; 2, 3: of the second.
  TALLY_INLINE void multiply_two_units(const int8_t* q) {
    zero();
#pragma GCC unroll 4
    for (size_t step = 0; step < kSteps; ++step) {
      tiles_.template load<4>(q + 64 * step, 256);
      tiles_.template load<6>(high_[0] + 1024 * step, 64);
      Split::template dot_high<0, 4, 6>(tiles_);
      tiles_.template load<7>(low_[0] + 1024 * step, 64);
      tiles_.template dot_su<1, 4, 7>();
      tiles_.template load<6>(high_[1] + 1024 * step, 64);
      Split::template dot_high<2, 4, 6>(tiles_);
      tiles_.template load<7>(low_[1] + 1024 * step, 64);
      tiles_.template dot_su<3, 4, 7>();
      finish(step);
    }
  }
  TALLY_INLINE void zero() {
    tiles_.template zero<0>();
    tiles_.template zero<1>();
    tiles_.template zero<2>();
    tiles_.template zero<3>();
  }

  // The products of two jobs leave the tiles; their f32 part waits for the next ones to be under way.
  TALLY_INLINE void take(const SuperBlockJob& first, const SuperBlockJob& second) {
    taken_ ^= 1;
    tiles_.template store<0>(products_[taken_][0], 64);
    tiles_.template store<1>(products_[taken_][1], 64);
    tiles_.template store<2>(products_[taken_][2], 64);
    tiles_.template store<3>(products_[taken_][3], 64);
    waiting_[0] = first, waiting_[1] = second;
  }
  // A quarter of what waits: 8 tokens of one job.
  TALLY_INLINE void finish(size_t step) {
    const SuperBlockJob& job = waiting_[step / 2];
    const Products* products = products_[taken_] + step / 2 * 2;
    const size_t first = step % 2 * kStepTokens;
    if (job.tokens <= first) return;
    const SuperBlockJob part{job.unit,
                             {job.x.q, job.x.d + first, job.x.sum16 + 16 * first, job.x.sum32 + 8 * first},
                             job.tokens - first,
                             job.acc + kGroupRows * first};
    const Taken taken{products[0] + 16 * first, products[1] + 16 * first};
    if (part.tokens >= kStepTokens)
      Split::add(part, taken, kStepTokens);
    else
      add_few(part, taken);
  }
  static __attribute__((noinline)) void add_few(const SuperBlockJob& job, const Taken& products) {
    Split::add(job, products, job.tokens);
  }

  size_t k_, ahead_, tile_tokens_;
  Tiles tiles_;
  SuperBlockJob waiting_[2]{};
  size_t taken_ = 0;
  alignas(64) uint8_t high_[2][kPlane], low_[2][kPlane];  // of both units
  alignas(64) Products products_[2][4];
  alignas(64) int8_t padded_[kPanelTile * 256];
};

// `few` runs fewer than `fewest` tokens.
template <class Split>
void run_super_blocks_amx(const LinearArgs& a, size_t fewest, LinearFn few) {
  if (a.tokens < fewest) return few(a);
  const size_t blocks = a.k / 256;
  SuperBlockKernel<Split> kernel(a);
  walk_chunks(
      a, {blocks * 2 * Split::Unit::kBytes, blocks * kInt256BlockBytes, a.tokens},
      [&](const uint8_t* weights, const Chunk& chunk, Sums& sums) { kernel.add_group(weights, chunk, sums); },
      [](size_t) {});
}

}  // namespace
}  // namespace TALLY_KERNELS_TIER
