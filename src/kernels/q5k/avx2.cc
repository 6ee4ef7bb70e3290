// Q5_K on AVX2: the tile of q4k/scale_min_avx2.h. Four product pairs of 31 * 127 * 2 = 7874 add up to 31,496,
// which 16 bits hold, so 32 k take two vpmaddwd.

#include "kernels/q4k/scale_min_avx2.h"
#include "kernels/q5k/q5k.h"

namespace tally::kernels {
namespace {

struct Codes {
  using Unit = Q5KUnit;
  static constexpr size_t kChain = 4;

  static inline void load(const uint8_t* sub, size_t half, __m256i* codes) {
    const __m256i low = _mm256_set1_epi8(15), bit = _mm256_set1_epi8(16);
    const __m256i high = load_32(sub + Unit::kHigh + 32 * half);
    for (int j = 0; j < 4; ++j) {
      const __m256i v = load_32(sub + 64 * static_cast<size_t>(j) + 32 * half);
      const __m256i low_bit = _mm256_and_si256(_mm256_slli_epi16(high, 4 - j), bit);
      const __m256i high_bit = _mm256_and_si256(_mm256_srli_epi16(high, j), bit);
      codes[j] = _mm256_or_si256(_mm256_and_si256(v, low), low_bit);
      codes[4 + j] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v, 4), low), high_bit);
    }
  }
};

}  // namespace

void q5k_avx2(const LinearArgs& args) { run_panel_tiles(args, Q5KUnit::kBytes, scale_min_tile<Codes>); }

}  // namespace tally::kernels
