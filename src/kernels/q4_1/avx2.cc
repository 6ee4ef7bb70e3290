// Q4_1 on AVX2: nibbles are unsigned bytes, so vpmaddubsw multiplies them with the signed activations as they
// are, and a whole block of 32 stays below 2^15 in its 16-bit sums: one vpmaddwd a block. The loop is
// block32_avx2.h.

#include "kernels/block32_avx2.h"
#include "kernels/q4_1/q4_1.h"

namespace tally::kernels {
namespace {

struct Q4_1 {
  static constexpr size_t kUnit = kQ4_1Unit, kScale = kQ4_1Scale, kMin = kQ4_1Min;

  template <class Use>
  static inline TALLY_INLINE void sums(const uint8_t* rows, const Int32Block& x, size_t tokens, Use use) {
    const Codes8 codes = load_nibbles(rows);
    for (size_t t = 0; t < tokens; ++t) use(t, dot<8>(codes, x.q + 32 * t));
  }
};

}  // namespace

void q4_1_avx2(const LinearArgs& args) { linear_avx2<Q4_1>(args); }

}  // namespace tally::kernels
