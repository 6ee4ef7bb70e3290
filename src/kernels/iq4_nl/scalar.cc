// The definition of the IQ4_NL product.

#include "kernels/iq4_nl/codes.h"
#include "kernels/linear_loop.h"

#include <cmath>

namespace tally::kernels {

void iq4_nl_scalar(const LinearArgs& a) {
  const size_t blocks = a.k / 32;
  each_row(a, blocks * 2 * kIq4NlUnit, blocks * kInt32BlockBytes,
           [&](const std::byte* group, size_t lane, const PanelTile& tile, float* acc) {
             for (size_t b = 0; b < blocks; ++b) {
               const Codes32 w = iq4_nl_codes(group, lane, b);
               const Int32Block x = int32_block(tile.bytes, tile.tokens, b);
               for (size_t t = 0; t < tile.tokens; ++t)
                 acc[t] = std::fma(static_cast<float>(dot32(w.q, x.q + 32 * t)), w.d * x.d[t], acc[t]);
             }
           });
}

}  // namespace tally::kernels
