#pragma once
// What the AMX kernels of the linear families share: the order in which weights meet tokens, and where their
// sums live meanwhile.
//
// A group's codes are unpacked once for each chunk of up to kChunkTiles panel tiles, which is what AMX lives
// from: with 16 tokens unpacking takes more time than the products. So blocks of k are outermost under a
// group and the f32 accumulators of all tokens of the chunk wait in L1 between two blocks: 16 KiB, which with
// the unpacked codes, a tile pair of the panel and two sets of products make up the 48 KiB of the L1 of these
// CPUs. Static, see panel.h.

#include "kernels/intrin_amx.h"
#include "kernels/lanes512.h"
#include "kernels/linear_loop.h"

namespace TALLY_KERNELS_TIER {
namespace {

constexpr size_t kChunkTiles = 8;

using Products = int32_t[256];  // [16 tokens][16 rows]

// Panel tiles that pass under a group together. All but the last have 16 tokens.
struct Chunk {
  const std::byte* panel;
  size_t tile_bytes;
  size_t tokens;  // at most 16 * kChunkTiles

  size_t tiles() const { return (tokens + kPanelTile - 1) / kPanelTile; }
  PanelTile tile(size_t i) const {
    const size_t left = tokens - i * kPanelTile;
    return {panel + i * tile_bytes, left < kPanelTile ? left : kPanelTile};
  }
};

// The f32 accumulators of a chunk, [token][32 rows].
struct alignas(64) Sums {
  float token[kChunkTiles * kPanelTile][kGroupRows];

  void clear(size_t tokens) { std::memset(token, 0, tokens * sizeof token[0]); }
  void write(const LinearArgs& a, size_t first_token, size_t tokens, size_t group) const {
    const size_t row = group * kGroupRows, rows = a.rows - row;
    for (size_t t = 0; t < tokens; ++t) {
      float* out = a.out + (first_token + t) * a.out_stride + row;
      Lanes::store(out, _mm512_load_ps(token[t]), rows);
      if (rows > Lanes::kRows)
        Lanes::store(out + Lanes::kRows, _mm512_load_ps(token[t] + 16), rows - Lanes::kRows);
    }
  }
};

struct Walk {
  size_t group_bytes, token_bytes;
  size_t tokens;  // the first tokens of the panel, all of them or a multiple of 16
};

// Calls add(weights of a group, chunk, sums) for every group and chunk; done(group) when a group has met its
// last chunk. Chunks have an even number of tiles, two of which make a full load for the tile unit, and
// nearly the same number each.
template <class Add, class Done>
void walk_chunks(const LinearArgs& a, const Walk& walk, Add add, Done done) {
  const size_t tile_bytes = kPanelTile * walk.token_bytes;
  const size_t pairs = (walk.tokens + 2 * kPanelTile - 1) / (2 * kPanelTile);
  size_t fit = a.tuning.chunk_bytes / (2 * tile_bytes);
  fit = fit < 1 ? 1 : fit < kChunkTiles / 2 ? fit : kChunkTiles / 2;
  const size_t parts = (pairs + fit - 1) / fit;
  Sums sums;
  for (size_t part = 0; part < parts; ++part) {
    const size_t first = part_begin(pairs, parts, part) * 2 * kPanelTile;
    const size_t end = part_begin(pairs, parts, part + 1) * 2 * kPanelTile;
    const size_t tokens = (end < walk.tokens ? end : walk.tokens) - first;
    const Chunk chunk{a.panel + first * walk.token_bytes, tile_bytes, tokens};
    for (size_t group = a.group_begin; group < a.group_end; ++group) {
      sums.clear(tokens);
      add(reinterpret_cast<const uint8_t*>(a.weights) + group * walk.group_bytes, chunk, sums);
      sums.write(a, first, tokens, group);
      if (part + 1 == parts) done(group);
    }
  }
}

// Asks for what lies `ahead` bytes behind the bytes [begin, begin + bytes) of the weights.
TALLY_INLINE inline void prefetch(const uint8_t* begin, size_t bytes, size_t ahead) {
  if (ahead == 0) return;
  for (size_t line = 0; line < bytes; line += 64)
    _mm_prefetch(reinterpret_cast<const char*>(begin + ahead + line), _MM_HINT_T0);
}

}  // namespace
}  // namespace TALLY_KERNELS_TIER
