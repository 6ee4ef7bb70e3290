// F32 on AVX2: eight rows a register, one fma chain a row and token. The loop is float_avx2.h.

#include "kernels/f32/f32.h"
#include "kernels/float_avx2.h"

namespace tally::kernels {
namespace {

struct F32 {
  static constexpr size_t kTokens = 3, kStep = 1, kBytes = kGroupRows * 4;

  template <size_t S>
  static inline TALLY_INLINE __m256 load(const uint8_t* w, size_t i) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(w) + 8 * i);
  }
};

}  // namespace

void f32_avx2(const LinearArgs& args) { float_linear_avx2<F32>(args); }

}  // namespace tally::kernels
