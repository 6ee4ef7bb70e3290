// Q4_1 on AVX-512 VNNI: nibbles are the unsigned operand, no correction; the minimums take the panel's sums.
// 32 rows x 1..6 tokens: 12 float and 12 integer accumulators, four nibble registers and a broadcast fit the
// 32 registers (block32_avx512.h).

#include "kernels/block32_avx512.h"
#include "kernels/q4_1/q4_1.h"

namespace TALLY_KERNELS_512 {
namespace {

struct Q4_1 {
  static constexpr size_t kUnit = kQ4_1Unit, kScale = kQ4_1Scale, kMin = kQ4_1Min;
  static constexpr int32_t kOffset = 0;

  template <size_t T>
  static inline TALLY_INLINE void dot(const uint8_t* unit, const Int32Block& x, __m512i (&c)[2][T]) {
    const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; ++j) {
      __m512i low[2], high[2];
#pragma GCC unroll 8
      for (size_t i = 0; i < 2; ++i) {
        const __m512i pair = load512(unit + kUnit * i + 64 * j);
        low[i] = _mm512_and_si512(pair, mask);
        high[i] = _mm512_and_si512(_mm512_srli_epi16(pair, 4), mask);
      }
#pragma GCC unroll 8
      for (size_t t = 0; t < T; ++t) {
        const __m512i a = broadcast4(x.q + 32 * t + 4 * j), b = broadcast4(x.q + 32 * t + 16 + 4 * j);
#pragma GCC unroll 8
        for (size_t i = 0; i < 2; ++i) {
          c[i][t] = _mm512_dpbusd_epi32(c[i][t], low[i], a);
          c[i][t] = _mm512_dpbusd_epi32(c[i][t], high[i], b);
        }
      }
    }
  }
};

}  // namespace

void q4_1_avx512vnni(const LinearArgs& args) {
  static constexpr TileFn kTiles[] = {tile_avx512<Q4_1, 1>, tile_avx512<Q4_1, 2>, tile_avx512<Q4_1, 3>,
                                      tile_avx512<Q4_1, 4>, tile_avx512<Q4_1, 5>, tile_avx512<Q4_1, 6>};
  run_tiles(args, {args.k / 32 * 2 * kQ4_1Unit, args.k / 32 * kInt32BlockBytes, kTiles, 6});
}

}  // namespace TALLY_KERNELS_512
