// Q4_K on AVX2: the tile of scale_min_avx2.h. Eight product pairs of 15 * 127 * 2 = 3810 add up to 30,480,
// which 16 bits hold, so one vpmaddwd serves 32 k.

#include "kernels/q4k/q4k.h"
#include "kernels/q4k/scale_min_avx2.h"

namespace tally::kernels {
namespace {

struct Codes {
  using Unit = Q4KUnit;
  static constexpr size_t kChain = 8;

  static inline void load(const uint8_t* sub, size_t half, __m256i* codes) {
    const __m256i low = _mm256_set1_epi8(15);
    for (size_t j = 0; j < 4; ++j) {
      const __m256i v = load_32(sub + 64 * j + 32 * half);
      codes[j] = _mm256_and_si256(v, low);
      codes[4 + j] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
    }
  }
};

}  // namespace

void q4k_avx2(const LinearArgs& args) { run_panel_tiles(args, Q4KUnit::kBytes, scale_min_tile<Codes>); }

}  // namespace tally::kernels
