// F16 on AVX2: widened by vcvtph2ps (exact), then as F32. The loop is float_avx2.h.

#include "kernels/f16/f16.h"
#include "kernels/float_avx2.h"

namespace tally::kernels {
namespace {

struct F16 {
  static constexpr size_t kTokens = 3, kStep = 1, kBytes = kGroupRows * 2;

  template <size_t S>
  static inline TALLY_INLINE __m256 load(const uint8_t* w, size_t i) {
    return load_f16(w + 16 * i);
  }
};

}  // namespace

void f16_avx2(const LinearArgs& args) { float_linear_avx2<F16>(args); }

}  // namespace tally::kernels
