#pragma once
// The AMX kernel of the types with blocks of 32, exact (their definitions: <family>/scalar.cc).
//
// Every block has its own f32 step, so a product is one block of 16 tokens x 16 rows: half of the k that a
// tile could hold, and the f32 side (convert, scale, add) is what bounds the rate. A job is four blocks of
// one panel tile and one unit: four products without a dependence on one another, and the accumulators are
// loaded and stored once for the four. While the tile unit works on one job the vector units finish the one
// before, a quarter behind each product: a whole job's vector instructions are more than the CPU looks ahead.
//
// Weights (code - kOffset, signed bytes) and scales (f32) are unpacked in slices of 8 blocks of both units,
// which stay in L1 for all tokens of a chunk. A last panel tile of fewer than 16 tokens goes to the VNNI
// kernel, which is faster there, group by group, while the group is in L2.

#include "kernels/amx/walk.h"

namespace TALLY_KERNELS_TIER {
namespace {

constexpr size_t kSlice = 8, kJobBlocks = 4;

// Up to kJobBlocks blocks of one unit under one full panel tile.
struct Block32Job {
  Int32Block x;         // of the first block
  const float *d, *m;   // [block][16 rows]
  const float* scaled;  // [block][16 tokens], d_a * sum of a
  float* acc;           // [token][kGroupRows]
  size_t blocks;
};
constexpr size_t kTileBlockBytes = kPanelTile * kInt32BlockBytes;

inline Int32Block block_behind(const Int32Block& x, size_t blocks) {
  return int32_block(reinterpret_cast<const std::byte*>(x.q), kPanelTile, blocks);
}

inline TileConfig block32_tiles() {
  TileConfig config;
  for (size_t i = 0; i < 4; ++i) config.shape(i, kPanelTile, 64);  // products
  for (size_t i = 4; i < 6; ++i) config.shape(i, kPanelTile, 32);  // activations [16 tokens][32 k]
  for (size_t i = 6; i < 8; ++i) config.shape(i, 8, 64);           // codes [8 k-groups][16 rows][4 k]
  return config;
}

template <class Format>
class Block32Kernel {
 public:
  explicit Block32Kernel(const LinearArgs& a)
      : blocks_(a.k / 32), ahead_(a.tuning.prefetch_bytes), tiles_(block32_tiles()) {}

  void add_group(const uint8_t* weights, const Chunk& chunk, Sums& sums) {
    for (size_t begin = 0; begin < blocks_; begin += kSlice, slice_ ^= 1) {
      const size_t count = blocks_ - begin < kSlice ? blocks_ - begin : kSlice;
      expand(weights + begin * 2 * Format::kUnit, count);
      for (size_t i = 0; i < chunk.tiles(); ++i)
        for (size_t u = 0; u < 2; ++u)
          for (size_t b = 0; b < count; b += kJobBlocks) {
            const size_t blocks = count - b < kJobBlocks ? count - b : kJobBlocks;
            const Int32Block x = int32_block(chunk.tile(i).bytes, kPanelTile, begin + b);
            multiply(x, codes_[u][b], blocks);
            take({x, d_[slice_][u][b], m_[slice_][u][b], nullptr, sums.token[i * kPanelTile] + 16 * u,
                  blocks});
          }
    }
    for (size_t step = 0; step < kSteps; ++step) finish(step);
    waiting_.blocks = 0;
  }

 private:
  static constexpr size_t kSteps = kJobBlocks, kStepTokens = kPanelTile / kSteps;

  void expand(const uint8_t* block, size_t count) {
    for (size_t b = 0; b < count; ++b)
      for (size_t u = 0; u < 2; ++u, block += Format::kUnit) {
        prefetch(block, Format::kUnit, ahead_);
        expand_half<0>(block, codes_[u][b]);
        expand_half<1>(block, codes_[u][b]);
        _mm512_store_ps(d_[slice_][u][b], Lanes::load_f16(block + Format::kScale));
        if constexpr (Format::kMin != 0)
          _mm512_store_ps(m_[slice_][u][b], Lanes::load_f16(block + Format::kMin));
      }
  }

  template <size_t h>
  static TALLY_INLINE void expand_half(const uint8_t* unit, int8_t* codes) {
    static_assert(Format::kOffset <= 128 && Format::kMaxCode - Format::kOffset <= 127);
    __m512i half[4];
    Format::template unpack<h>(unit, half);
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j)
      _mm512_store_si512(codes + 64 * (4 * h + j), Lanes::add8(half[j], Lanes::set8(-Format::kOffset)));
  }

  template <int kC, int kA, int kB>
  TALLY_INLINE void product(const Int32Block& x, const int8_t* codes) {
    tiles_.template zero<kC>();
    tiles_.template load<kA>(x.q + kC * kTileBlockBytes, 32);
    tiles_.template load<kB>(codes + kC * 512, 64);
    tiles_.template dot_ss<kC, kA, kB>();
  }
  TALLY_INLINE void multiply(const Int32Block& x, const int8_t* codes, size_t blocks) {
    product<0, 4, 6>(x, codes);
    finish(0);
    if (blocks > 1) product<1, 5, 7>(x, codes);
    finish(1);
    if (blocks > 2) product<2, 4, 6>(x, codes);
    finish(2);
    if (blocks > 3) product<3, 5, 7>(x, codes);
    finish(3);
  }

  // The products of a job leave the tiles; their f32 part waits for the next ones to be under way.
  TALLY_INLINE void take(const Block32Job& job) {
    taken_ ^= 1;
    tiles_.template store<0>(products_[taken_][0], 64);
    if (job.blocks > 1) tiles_.template store<1>(products_[taken_][1], 64);
    if (job.blocks > 2) tiles_.template store<2>(products_[taken_][2], 64);
    if (job.blocks > 3) tiles_.template store<3>(products_[taken_][3], 64);
    waiting_ = job;
    if constexpr (Format::kMin != 0) {
      for (size_t i = 0; i < job.blocks; ++i) {
        const Int32Block x = block_behind(job.x, i);
        _mm512_store_ps(scaled_[taken_][i],
                        _mm512_mul_ps(_mm512_loadu_ps(x.d), _mm512_cvtepi32_ps(_mm512_loadu_si512(x.sum))));
      }
      waiting_.scaled = scaled_[taken_][0];
    }
  }
  // A quarter of what waits: four tokens.
  TALLY_INLINE void finish(size_t step) {
    if (waiting_.blocks == kJobBlocks)
      add(waiting_, products_[taken_], step * kStepTokens, kJobBlocks);
    else
      add_few(waiting_, products_[taken_], step * kStepTokens);
  }
  // The last blocks of a k that is no multiple of 128.
  static __attribute__((noinline)) void add_few(const Block32Job& job, const Products* products,
                                                size_t first) {
    if (job.blocks > 0) add(job, products, first, job.blocks);
  }

  static TALLY_INLINE void add(const Block32Job job, const Products* products, size_t first, size_t blocks) {
    __m512 d[kJobBlocks], m[kJobBlocks];
    const float* da[kJobBlocks];
#pragma GCC unroll 4
    for (size_t i = 0; i < blocks; ++i) {
      const Int32Block x = block_behind(job.x, i);
      da[i] = x.d + first;
      d[i] = _mm512_load_ps(job.d + 16 * i);
      if constexpr (Format::kMin != 0) m[i] = _mm512_load_ps(job.m + 16 * i);
    }
#pragma GCC unroll 4
    for (size_t t = 0; t < kStepTokens; ++t) {
      float* sum = job.acc + kGroupRows * (first + t);
      __m512 acc = _mm512_load_ps(sum);
#pragma GCC unroll 4
      for (size_t i = 0; i < blocks; ++i) {
        const __m512 c = _mm512_cvtepi32_ps(_mm512_load_si512(products[i] + 16 * (first + t)));
        acc = _mm512_fmadd_ps(c, _mm512_mul_ps(d[i], _mm512_set1_ps(da[i][t])), acc);
        if constexpr (Format::kMin != 0)
          acc = _mm512_fmadd_ps(m[i], _mm512_set1_ps(job.scaled[16 * i + first + t]), acc);
      }
      _mm512_store_ps(sum, acc);
    }
  }

  size_t blocks_, ahead_;
  Tiles tiles_;
  Block32Job waiting_{};
  size_t taken_ = 0;
  size_t slice_ = 0;  // which half of d_ and m_ it has: the job that waits may be of the slice before
  alignas(64) int8_t codes_[2][kSlice][512];  // of both units
  alignas(64) float d_[2][2][kSlice][16], m_[2][2][kSlice][16];
  alignas(64) float scaled_[2][kJobBlocks][16];
  alignas(64) Products products_[2][kJobBlocks];
};

// From this many tokens on a panel tile is faster here than on VNNI: reference measurements gave 464 against
// 427 GOP/s at 16 tokens of Q8_0 and 250 against 453 at 8.
constexpr size_t kFewestTokens = 16;
static_assert(kFewestTokens == kPanelTile);

// `few` runs fewer tokens than a panel tile.
template <class Format>
void run_block32_amx(const LinearArgs& a, LinearFn few) {
  if (a.tokens < kFewestTokens) return few(a);
  const size_t blocks = a.k / 32, whole = a.tokens / kPanelTile * kPanelTile;
  const Walk walk{blocks * 2 * Format::kUnit, blocks * kInt32BlockBytes, whole};
  LinearArgs rest = a;
  rest.panel += whole * walk.token_bytes;
  rest.tokens -= whole;
  rest.out += whole * a.out_stride;
  Block32Kernel<Format> kernel(a);
  walk_chunks(
      a, walk,
      [&](const uint8_t* weights, const Chunk& chunk, Sums& sums) { kernel.add_group(weights, chunk, sums); },
      [&](size_t group) {
        if (rest.tokens == 0) return;
        rest.group_begin = group, rest.group_end = group + 1;
        few(rest);
      });
}

}  // namespace
}  // namespace TALLY_KERNELS_TIER
