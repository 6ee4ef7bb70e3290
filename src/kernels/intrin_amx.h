#pragma once
// The tile unit of Intel AMX, native or emulated (tier.h): eight tiles of up to 16 rows x 64 bytes.
//
//   TileConfig config;
//   config.shape(0, 16, 64);    // tile 0: 16 rows of 64 bytes; a tile without a shape is not used
//   Tiles tiles(config);        // LDTILECFG: every tile is zero
//   tiles.load<4>(a, 256);      // row m = the tile's bytes at a + 256 * m
//   tiles.load<6>(b, 64);
//   tiles.dot_su<0, 4, 6>();    // tile 0 += tile 4 (s8) * tile 6 (u8)
//   tiles.store<0>(c, 64);
//                               // ~Tiles: TILERELEASE
//
// A product is C[m][n] += sum over p, i of A[m][4 p + i] * B[p][4 n + i], i in 0..3, in int32 that wraps:
// A has M rows of K bytes, B K / 4 rows of 4 N bytes, C M rows of N int32. B's rows are our packed registers
// (16 rows of weights x 4 k, N = 16), A's rows are activations as they lie in memory.
//
// Requires: the shapes of a product as above, its three tiles different ones; one Tiles at a time on a
// thread. The CPU raises #UD where they are not, the emulation traps.
// Ensures: load and store are compiler barriers: a load sees what was written before it, what is read behind
// a store is what it stored. Everybody else finds the tiles released.
//
// Source: Intel Architecture Instruction Set Extensions Programming Reference, chapter 3.

#include "kernels/tier.h"

#include <cstddef>
#include <cstdint>

#ifdef TALLY_EMULATE
#include <immintrin.h>

#include <cstring>
#endif

#define TALLY_INLINE __attribute__((always_inline))

namespace TALLY_KERNELS_TIER {
namespace {

// The operand of LDTILECFG, palette 1.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};  // of tile i, at most 64; 8..15 do not exist
  uint8_t rows[16] = {};        // of tile i, at most 16

  constexpr void shape(size_t tile, size_t tile_rows, size_t tile_row_bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(tile_row_bytes);
  }
};
static_assert(sizeof(TileConfig) == 64);

#ifndef TALLY_EMULATE

// The instructions as asm: tile numbers are part of their names, and gcc 12's intrinsics take them as tokens
// only; its _tile_loadconfig names 8 of the 64 bytes as its operand, so that the stores that fill the others
// are dropped. Volatile asm keeps its order.
class Tiles {
 public:
  explicit TALLY_INLINE Tiles(const TileConfig& config) {
    asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  }
  TALLY_INLINE ~Tiles() { asm volatile("tilerelease" : : : "memory"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int kTile>
  TALLY_INLINE void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile>
  TALLY_INLINE void load(const void* p, size_t stride) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(p), "r"(stride) : "memory");
  }
  template <int kTile>
  TALLY_INLINE void store(void* p, size_t stride) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(p), "r"(stride) : "memory");
  }
  template <int kC, int kA, int kB>
  TALLY_INLINE void dot_ss() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  template <int kC, int kA, int kB>
  TALLY_INLINE void dot_su() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
  template <int kC, int kA, int kB>
  TALLY_INLINE void dot_us() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
  }
};

#else

class Tiles {
 public:
  explicit Tiles(const TileConfig& config) : config_(config) {
    bool valid = config.palette == 1 && config.start_row == 0;
    for (const uint8_t byte : config.reserved) valid = valid && byte == 0;
    for (size_t i = 0; i < 16; ++i) {
      const size_t rows = config.rows[i], row_bytes = config.row_bytes[i];
      valid =
          valid && rows <= 16 && row_bytes <= 64 && (rows == 0) == (row_bytes == 0) && (i < 8 || rows == 0);
    }
    require(valid);
    std::memset(tile_, 0, sizeof tile_);
  }
  ~Tiles() = default;
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

  template <int kTile>
  void zero() {
    require_shape(kTile);
    std::memset(tile_[kTile], 0, sizeof tile_[kTile]);
  }
  template <int kTile>
  void load(const void* p, size_t stride) {
    zero<kTile>();
    for (size_t m = 0; m < config_.rows[kTile]; ++m)
      std::memcpy(tile_[kTile][m], static_cast<const char*>(p) + m * stride, config_.row_bytes[kTile]);
  }
  template <int kTile>
  void store(void* p, size_t stride) {
    require_shape(kTile);
    for (size_t m = 0; m < config_.rows[kTile]; ++m)
      std::memcpy(static_cast<char*>(p) + m * stride, tile_[kTile][m], config_.row_bytes[kTile]);
  }
  template <int kC, int kA, int kB>
  void dot_ss() {
    dot<true, true>(kC, kA, kB);
  }
  template <int kC, int kA, int kB>
  void dot_su() {
    dot<true, false>(kC, kA, kB);
  }
  template <int kC, int kA, int kB>
  void dot_us() {
    dot<false, true>(kC, kA, kB);
  }

 private:
  // What the CPU answers with #UD or #GP.
  static void require(bool condition) {
    if (!condition) __builtin_trap();
  }
  void require_shape(int tile) const { require(tile >= 0 && tile < 8 && config_.rows[tile] > 0); }

  // Bytes behind a tile's rows and row bytes are always zero, so whole registers may be multiplied.
  template <bool kSignedA, bool kSignedB>
  __attribute__((target("avx2"))) void dot(int c, int a, int b) {
    require_shape(a), require_shape(b), require_shape(c);
    require(a != b && a != c && b != c);
    require(config_.rows[c] == config_.rows[a] && config_.row_bytes[a] == 4 * config_.rows[b] &&
            config_.row_bytes[b] == config_.row_bytes[c] && config_.row_bytes[c] % 4 == 0);
    const __m256i low_byte = _mm256_set1_epi16(0xFF);
    __m256i even[16][2], odd[16][2];  // B's bytes 2 j and 2 j + 1, widened
    const size_t k4 = config_.rows[b];
    for (size_t p = 0; p < k4; ++p)
      for (size_t h = 0; h < 2; ++h) {
        const __m256i v = _mm256_load_si256(reinterpret_cast<const __m256i*>(tile_[b][p] + 32 * h));
        even[p][h] = kSignedB ? _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8) : _mm256_and_si256(v, low_byte);
        odd[p][h] = kSignedB ? _mm256_srai_epi16(v, 8) : _mm256_srli_epi16(v, 8);
      }
    for (size_t m = 0; m < config_.rows[c]; ++m) {
      auto* row = reinterpret_cast<__m256i*>(tile_[c][m]);
      __m256i sum[2] = {_mm256_load_si256(row), _mm256_load_si256(row + 1)};
      for (size_t p = 0; p < k4; ++p) {
        int32_t four;
        std::memcpy(&four, tile_[a][m] + 4 * p, 4);
        const __m256i x = _mm256_set1_epi32(four);
        const __m256i x0 =
            kSignedA ? _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8) : _mm256_and_si256(x, low_byte);
        const __m256i x1 = kSignedA ? _mm256_srai_epi16(x, 8) : _mm256_srli_epi16(x, 8);
        for (size_t h = 0; h < 2; ++h)
          sum[h] = _mm256_add_epi32(
              sum[h], _mm256_add_epi32(_mm256_madd_epi16(even[p][h], x0), _mm256_madd_epi16(odd[p][h], x1)));
      }
      _mm256_store_si256(row, sum[0]);
      _mm256_store_si256(row + 1, sum[1]);
    }
  }

  TileConfig config_;
  alignas(64) uint8_t tile_[8][16][64];
};

#endif

}  // namespace
}  // namespace TALLY_KERNELS_TIER
