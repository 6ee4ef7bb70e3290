// Q6_K on AVX2: 32 rows x up to 16 tokens, as four slices of 8 rows.
//
// As in q4k/scale_min_avx2.h a sub-block's codes of a slice are unpacked once into 8 registers and meet the
// tokens one after the other. Two product pairs of 63 * 127 * 2 = 16,002 add up to 32,004, which 16 bits
// hold; vpmaddwd then applies the scale (s8, one for 16 k). Codes are unsigned: 32 * sum_g scale_g * sum16_g
// is taken off once a block, from the panel's sums, eight vpmaddwd on pairs of groups.

#include "kernels/q4k/lanes_avx2.h"
#include "kernels/q6k/q6k.h"

namespace tally::kernels {
namespace {

using Unit = Q6KUnit;

inline void load_codes(const uint8_t* sub, size_t half, __m256i* codes) {
  const __m256i low = _mm256_set1_epi8(15), bits = _mm256_set1_epi8(0x30);
  for (size_t pair = 0; pair < 2; ++pair) {
    const __m256i high = load_32(sub + Unit::kHigh + 64 * pair + 32 * half);
    const __m256i even = load_32(sub + 128 * pair + 32 * half),
                  odd = load_32(sub + 128 * pair + 64 + 32 * half);
    __m256i* x = codes + 2 * pair;
    x[0] = _mm256_or_si256(_mm256_and_si256(even, low), _mm256_and_si256(_mm256_slli_epi16(high, 4), bits));
    x[1] = _mm256_or_si256(_mm256_and_si256(odd, low), _mm256_and_si256(high, bits));
    x[4] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(even, 4), low),
                           _mm256_and_si256(_mm256_slli_epi16(high, 2), bits));
    x[5] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(odd, 4), low),
                           _mm256_and_si256(_mm256_srli_epi16(high, 2), bits));
  }
}

// Scales of the 16-k groups 2 * sub and 2 * sub + 1 as 16-bit pairs in each row's lane.
inline __m256i load_scales(const uint8_t* unit, size_t sub, size_t half) {
  const uint8_t* p = unit + Unit::kScale + 32 * sub + 8 * half;
  return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(load_8(p), load_8(p + 16)));
}

// Row sums of codes * q over 16 k, times the row's scale.
inline __m256i scaled_dot(const __m256i* codes, const int8_t* q, __m256i scale) {
  const __m256i a = _mm256_add_epi16(_mm256_maddubs_epi16(codes[0], broadcast_4(q)),
                                     _mm256_maddubs_epi16(codes[1], broadcast_4(q + 4)));
  const __m256i b = _mm256_add_epi16(_mm256_maddubs_epi16(codes[2], broadcast_4(q + 8)),
                                     _mm256_maddubs_epi16(codes[3], broadcast_4(q + 12)));
  return _mm256_add_epi32(_mm256_madd_epi16(a, scale), _mm256_madd_epi16(b, scale));
}

// Corrects isum for the codes' offset and adds the block to the float chain.
inline void add_block(const uint8_t* unit, size_t half, const Int256Block& x, size_t tokens,
                      const __m256i* isum, __m256* acc) {
  const __m256 d = load_half(unit + Unit::kD + 16 * half);
  __m256i scale[8];
  for (size_t sub = 0; sub < 8; ++sub) scale[sub] = load_scales(unit, sub, half);
  for (size_t t = 0; t < tokens; ++t) {
    const int16_t* sums = x.sum16 + 16 * t;
    __m256i offset = _mm256_madd_epi16(scale[0], broadcast_4(sums));
    for (size_t sub = 1; sub < 8; ++sub)
      offset = _mm256_add_epi32(offset, _mm256_madd_epi16(scale[sub], broadcast_4(sums + 2 * sub)));
    const __m256i exact = _mm256_sub_epi32(isum[t], _mm256_slli_epi32(offset, 5));
    acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(exact), _mm256_mul_ps(d, _mm256_set1_ps(x.d[t])), acc[t]);
  }
}

void tile(const TileArgs& args) {
  const __m256i first = _mm256_set1_epi32(0x01000100), second = _mm256_set1_epi32(0x03020302);
  const __m256i lane =
      _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0C0C0C0C, 0, 0x04040404, 0x08080808, 0x0C0C0C0C);
  const __m256i take_first = _mm256_add_epi8(first, lane), take_second = _mm256_add_epi8(second, lane);
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
        const __m256i scales = load_scales(unit, sub, half);
        const __m256i scale0 = _mm256_shuffle_epi8(scales, take_first),
                      scale1 = _mm256_shuffle_epi8(scales, take_second);
        for (size_t t = 0; t < tokens; ++t) {
          const int8_t* q = x.q + 256 * t + 32 * sub;
          const __m256i dot =
              _mm256_add_epi32(scaled_dot(codes, q, scale0), scaled_dot(codes + 4, q + 16, scale1));
          isum[t] = _mm256_add_epi32(isum[t], dot);
        }
      }
      add_block(unit, half, x, tokens, isum, acc[s]);
    }
  }
  for (size_t s = 0; s < kSlices; ++s) store_slice(args, s, acc[s]);
}

}  // namespace

void q6k_avx2(const LinearArgs& args) { run_panel_tiles(args, Unit::kBytes, tile); }

}  // namespace tally::kernels
