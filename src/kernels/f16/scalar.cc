// The definition of the F16 product.

#include "kernels/f16/f16.h"
#include "kernels/linear_loop.h"
#include "tensor/blocks.h"

#include <cmath>

namespace tally::kernels {

void f16_scalar(const LinearArgs& a) {
  each_row(a, a.k * kGroupRows * sizeof(uint16_t), a.k * sizeof(float),
           [&](const std::byte* group, size_t lane, const PanelTile& tile, float* acc) {
             const uint16_t* w = reinterpret_cast<const uint16_t*>(group) + lane;
             for (size_t k = 0; k < a.k; ++k) {
               const float wide = tensor::f16_to_f32(w[k * kGroupRows]);
               const float* x = f32_row(tile.bytes, tile.tokens, k);
               for (size_t t = 0; t < tile.tokens; ++t) acc[t] = std::fma(wide, x[t], acc[t]);
             }
           });
}

}  // namespace tally::kernels
