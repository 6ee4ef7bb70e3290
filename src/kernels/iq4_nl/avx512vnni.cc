// IQ4_NL on AVX-512 VNNI: the tile of lookup_512.h on value + 128, 1..241.

#include "kernels/iq4_nl/iq4_nl.h"
#include "kernels/iq4_nl/lookup_512.h"
#include "tensor/blocks.h"

namespace TALLY_KERNELS_512 {
namespace {

struct Iq4Nl {
  static constexpr size_t kUnit = kIq4NlUnit;
  static constexpr const int8_t* kValues = tensor::kIq4Values;
  static constexpr int32_t kOffset = 128;

  static inline __m512 scales(const uint8_t* unit) { return load_half(unit + kIq4NlScale); }
};

}  // namespace

void iq4_nl_avx512vnni(const LinearArgs& args) { run_lookup<Iq4Nl>(args); }

}  // namespace TALLY_KERNELS_512
