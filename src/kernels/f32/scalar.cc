// The definition of the F32 product.

#include "kernels/f32/f32.h"
#include "kernels/linear_loop.h"

#include <cmath>

namespace tally::kernels {

void f32_scalar(const LinearArgs& a) {
  each_row(a, a.k * kGroupRows * sizeof(float), a.k * sizeof(float),
           [&](const std::byte* group, size_t lane, const PanelTile& tile, float* acc) {
             const float* w = reinterpret_cast<const float*>(group) + lane;
             for (size_t k = 0; k < a.k; ++k) {
               const float* x = f32_row(tile.bytes, tile.tokens, k);
               for (size_t t = 0; t < tile.tokens; ++t) acc[t] = std::fma(w[k * kGroupRows], x[t], acc[t]);
             }
           });
}

}  // namespace tally::kernels
