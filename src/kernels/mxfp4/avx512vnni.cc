// MXFP4 on AVX-512 VNNI: the tile of iq4_nl/lookup_512.h on value + 12, 0..24.

#include "kernels/iq4_nl/lookup_512.h"
#include "kernels/mxfp4/mxfp4.h"
#include "tensor/blocks.h"

namespace TALLY_KERNELS_512 {
namespace {

struct Mxfp4 {
  static constexpr size_t kUnit = kMxfp4Unit;
  static constexpr const int8_t* kValues = tensor::kMxfp4Values;
  static constexpr int32_t kOffset = 12;

  // As in avx2.cc.
  static inline __m512 scales(const uint8_t* unit) {
    const __m512i e = _mm512_cvtepu8_epi32(load_16(unit + kMxfp4Scale)), one = _mm512_set1_epi32(1);
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    const __m512i subnormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), _mm512_min_epi32(e, one));
    return _mm512_castsi512_ps(_mm512_max_epi32(normal, subnormal));
  }
};

}  // namespace

void mxfp4_avx512vnni(const LinearArgs& args) { run_lookup<Mxfp4>(args); }

}  // namespace TALLY_KERNELS_512
