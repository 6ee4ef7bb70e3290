// Q8_0 (and Q5_0 in its unit) on AVX-512 VNNI: q + 128 is the unsigned operand as it lies in memory; 128
// times the sum of the activations comes off in the initial accumulator. 32 rows x 1..6 tokens: 12 float and
// 12 integer accumulators, two weight registers and a broadcast fit the 32 registers (block32_avx512.h).

#include "kernels/block32_avx512.h"
#include "kernels/q8_0/q8_0.h"

namespace TALLY_KERNELS_512 {
namespace {

struct Q8_0 {
  static constexpr size_t kUnit = kQ8_0Unit, kScale = kQ8_0Scale, kMin = 0;
  static constexpr int32_t kOffset = 128;

  template <size_t T>
  static inline TALLY_INLINE void dot(const uint8_t* unit, const Int32Block& x, __m512i (&c)[2][T]) {
#pragma GCC unroll 8
    for (size_t g = 0; g < 8; ++g) {
      const __m512i w[2] = {load512(unit + 64 * g), load512(unit + kUnit + 64 * g)};
#pragma GCC unroll 8
      for (size_t t = 0; t < T; ++t) {
        const __m512i a = broadcast4(x.q + 32 * t + 4 * g);
        c[0][t] = _mm512_dpbusd_epi32(c[0][t], w[0], a);
        c[1][t] = _mm512_dpbusd_epi32(c[1][t], w[1], a);
      }
    }
  }
};

}  // namespace

void q8_0_avx512vnni(const LinearArgs& args) {
  static constexpr TileFn kTiles[] = {tile_avx512<Q8_0, 1>, tile_avx512<Q8_0, 2>, tile_avx512<Q8_0, 3>,
                                      tile_avx512<Q8_0, 4>, tile_avx512<Q8_0, 5>, tile_avx512<Q8_0, 6>};
  run_tiles(args, {args.k / 32 * 2 * kQ8_0Unit, args.k / 32 * kInt32BlockBytes, kTiles, 6});
}

}  // namespace TALLY_KERNELS_512
