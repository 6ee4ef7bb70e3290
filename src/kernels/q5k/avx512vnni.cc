// Q5_K on AVX-512 VNNI: the tile of q4k/scale_min_512.h with codes 0..31.

#include "kernels/q4k/scale_min_512.h"
#include "kernels/q5k/q5k.h"

namespace TALLY_KERNELS_512 {
namespace {

struct Codes {
  using Unit = Q5KUnit;

  static inline void load(const uint8_t* sub, __m512i* codes) {
    const __m512i low = _mm512_set1_epi8(15), bit = _mm512_set1_epi8(16);
    const __m512i high = load_64(sub + Unit::kHigh);
    const __m512i low_bits[4] = {_mm512_slli_epi16(high, 4), _mm512_slli_epi16(high, 3),
                                 _mm512_slli_epi16(high, 2), _mm512_slli_epi16(high, 1)};
    const __m512i high_bits[4] = {high, _mm512_srli_epi16(high, 1), _mm512_srli_epi16(high, 2),
                                  _mm512_srli_epi16(high, 3)};
    for (size_t j = 0; j < 4; ++j) {
      const __m512i v = load_64(sub + 64 * j);
      codes[j] = _mm512_or_si512(_mm512_and_si512(v, low), _mm512_and_si512(low_bits[j], bit));
      codes[4 + j] = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(v, 4), low),
                                     _mm512_and_si512(high_bits[j], bit));
    }
  }
};

}  // namespace

void q5k_avx512vnni(const LinearArgs& args) { run_panel_tiles(args, Q5KUnit::kBytes, scale_min_tile<Codes>); }

}  // namespace TALLY_KERNELS_512
