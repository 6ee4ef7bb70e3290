// F32 on AVX-512: sixteen rows a register, one fma chain a row and token. 32 rows x 1..8 tokens: 16
// accumulators hide the latency of two fma a cycle, one load of the weights serves eight tokens.

#include "kernels/block32_avx512.h"
#include "kernels/f32/f32.h"

namespace TALLY_KERNELS_512 {
namespace {

template <size_t T>
void tile(const TileArgs& a) {
  __m512 acc[2][T];
#pragma GCC unroll 8
  for (size_t i = 0; i < 2; ++i)
#pragma GCC unroll 8
    for (size_t t = 0; t < T; ++t) acc[i][t] = _mm512_setzero_ps();
  const float* w = reinterpret_cast<const float*>(a.group);
  for (size_t k = 0; k < a.k; ++k, w += kGroupRows) {
    const float* x = f32_row(a.tile.bytes, a.tile.tokens, k) + a.first;
    for (size_t line = 0; line < 2; ++line)
      _mm_prefetch(reinterpret_cast<const char*>(w + 16 * line) + kPrefetchAhead, _MM_HINT_T0);
    const __m512 rows[2] = {_mm512_loadu_ps(w), _mm512_loadu_ps(w + 16)};
#pragma GCC unroll 8
    for (size_t t = 0; t < T; ++t) {
      const __m512 xt = _mm512_set1_ps(x[t]);
      acc[0][t] = _mm512_fmadd_ps(rows[0], xt, acc[0][t]);
      acc[1][t] = _mm512_fmadd_ps(rows[1], xt, acc[1][t]);
    }
  }
  store_tile<T>(a, acc);
}

}  // namespace

void f32_avx512vnni(const LinearArgs& args) {
  static constexpr TileFn kTiles[] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>, tile<7>, tile<8>};
  run_tiles(args, {args.k * kGroupRows * sizeof(float), args.k * sizeof(float), kTiles, 8});
}

}  // namespace TALLY_KERNELS_512
