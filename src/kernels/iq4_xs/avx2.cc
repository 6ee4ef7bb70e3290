// IQ4_XS on AVX2: 32 rows x up to 16 tokens, as four slices of 8 rows, built like q4k/scale_min_avx2.h.
//
// Each of the two planes of the values (iq4_nl/planes_avx2.h) goes through a sub-block like the codes of
// Q4_K: eight product pairs of 15 * 127 * 2 add up to 30,480, which 16 bits hold, and one vpmaddwd applies
// the scale, times 16 for the high plane. 128 * sum_b scale_b * sum32_b is taken off once a block, from the
// panel's sums.

#include "kernels/iq4_nl/planes_avx2.h"
#include "kernels/iq4_xs/iq4_xs.h"
#include "kernels/q4k/lanes_avx2.h"

namespace tally::kernels {
namespace {

using Unit = Iq4XsUnit;

inline void load_codes(const uint8_t* sub, size_t half, __m256i* codes) {
  const __m256i low = _mm256_set1_epi8(15);
  for (size_t j = 0; j < 4; ++j) {
    const __m256i v = load_32(sub + 64 * j + 32 * half);
    codes[j] = _mm256_and_si256(v, low);
    codes[4 + j] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
  }
}

// Scales of sub-blocks a and b as 16-bit pairs in each row's lane.
inline __m256i load_scales(const uint8_t* unit, size_t a, size_t b, size_t half) {
  const uint8_t* p = unit + Unit::kScale + 8 * half;
  return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(load_8(p + 16 * a), load_8(p + 16 * b)));
}

// Adds the products of one plane of a sub-block, times the rows' scale, to isum[token].
inline void add_plane(const __m256i* codes, __m256i plane, __m256i scale, const int8_t* q, size_t tokens,
                      __m256i* isum) {
  __m256i values[8];
  for (size_t g = 0; g < 8; ++g) values[g] = _mm256_shuffle_epi8(plane, codes[g]);
  for (size_t t = 0; t < tokens; ++t, q += 256) {
    __m256i sum = _mm256_maddubs_epi16(values[0], broadcast_4(q));
    for (size_t g = 1; g < 8; ++g)
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(values[g], broadcast_4(q + 4 * g)));
    isum[t] = _mm256_add_epi32(isum[t], _mm256_madd_epi16(sum, scale));
  }
}

// Corrects isum for the offset of the planes and adds the block to the float chain.
inline void add_block(const uint8_t* unit, size_t half, const Int256Block& x, size_t tokens,
                      const __m256i* isum, __m256* acc) {
  const __m256 d = load_half(unit + Unit::kD + 16 * half);
  __m256i scale[4];
  for (size_t j = 0; j < 4; ++j) scale[j] = load_scales(unit, 2 * j, 2 * j + 1, half);
  for (size_t t = 0; t < tokens; ++t) {
    const int16_t* sums = x.sum32 + 8 * t;
    __m256i offset = _mm256_madd_epi16(scale[0], broadcast_4(sums));
    for (size_t j = 1; j < 4; ++j)
      offset = _mm256_add_epi32(offset, _mm256_madd_epi16(scale[j], broadcast_4(sums + 2 * j)));
    const __m256i exact = _mm256_sub_epi32(isum[t], _mm256_slli_epi32(offset, 7));
    acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), _mm256_mul_ps(d, _mm256_set1_ps(x.d[t])), acc[t]);
  }
}

void tile(const TileArgs& args) {
  const Iq4Planes planes = iq4_planes();
  const size_t tokens = args.tile.tokens;
  __m256 acc[kSlices][kPanelTile];
  for (auto& slice : acc)
    for (size_t t = 0; t < tokens; ++t) slice[t] = _mm256_setzero_ps();
  const auto* block = reinterpret_cast<const uint8_t*>(args.group);
  for (size_t b = 0; b < args.k / 256; ++b, block += 2 * Unit::kBytes) {
    const Int256Block x = int256_block(args.tile.bytes, tokens, b);
    for (size_t s = 0; s < kSlices; ++s) {
      const uint8_t* unit = block + s / 2 * Unit::kBytes;
      const size_t half = s % 2;
      __m256i isum[kPanelTile];
      for (size_t t = 0; t < tokens; ++t) isum[t] = _mm256_setzero_si256();
      for (size_t sub = 0; sub < 8; ++sub) {
        prefetch_step<Unit::kBytes>(block, 8 * s + sub);
        __m256i codes[8];
        load_codes(unit + Unit::kSubBlock * sub, half, codes);
        const __m256i scale = load_scales(unit, sub, sub, half);
        const int8_t* q = x.q + 32 * sub;
        add_plane(codes, planes.high, _mm256_slli_epi16(scale, 4), q, tokens, isum);
        add_plane(codes, planes.low, scale, q, tokens, isum);
      }
      add_block(unit, half, x, tokens, isum, acc[s]);
    }
  }
  for (size_t s = 0; s < kSlices; ++s) store_slice(args, s, acc[s]);
}

}  // namespace

void iq4_xs_avx2(const LinearArgs& args) { run_panel_tiles(args, Unit::kBytes, tile); }

}  // namespace tally::kernels
