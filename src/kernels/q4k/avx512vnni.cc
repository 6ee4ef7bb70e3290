// Q4_K on AVX-512 VNNI: the tile of scale_min_512.h with codes 0..15.

#include "kernels/q4k/q4k.h"
#include "kernels/q4k/scale_min_512.h"

namespace TALLY_KERNELS_512 {
namespace {

struct Codes {
  using Unit = Q4KUnit;

  static inline void load(const uint8_t* sub, __m512i* codes) {
    const __m512i low = _mm512_set1_epi8(15);
    for (size_t j = 0; j < 4; ++j) {
      const __m512i v = load_64(sub + 64 * j);
      codes[j] = _mm512_and_si512(v, low);
      codes[4 + j] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    }
  }
};

}  // namespace

void q4k_avx512vnni(const LinearArgs& args) { run_panel_tiles(args, Q4KUnit::kBytes, scale_min_tile<Codes>); }

}  // namespace TALLY_KERNELS_512
