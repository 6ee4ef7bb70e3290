// The definition of the BF16 product.

#include "kernels/bf16/bf16.h"
#include "kernels/linear_loop.h"
#include "tensor/blocks.h"

#include <cmath>

namespace tally::kernels {

void bf16_scalar(const LinearArgs& a) {
  each_row(a, (a.k + 1) / 2 * kGroupRows * 2 * sizeof(uint16_t), a.k * sizeof(float),
           [&](const std::byte* group, size_t lane, const PanelTile& tile, float* acc) {
             const uint16_t* pairs = reinterpret_cast<const uint16_t*>(group) + 2 * lane;
             for (size_t k = 0; k < a.k; ++k) {
               const float wide = tensor::bf16_to_f32(pairs[k / 2 * kGroupRows * 2 + k % 2]);
               const float* x = f32_row(tile.bytes, tile.tokens, k);
               for (size_t t = 0; t < tile.tokens; ++t) acc[t] = std::fma(wide, x[t], acc[t]);
             }
           });
}

}  // namespace tally::kernels
