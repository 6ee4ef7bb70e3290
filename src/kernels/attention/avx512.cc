// The forms of float_rows.h, int8_pairs.h and nibble_pairs.h on AVX-512BW, sixteen lanes. In one file, as the
// emulated copy of each costs seconds to compile.
#include "kernels/attention/attention.h"
#include "kernels/attention/float_rows.h"
#include "kernels/attention/lanes_512.h"
#include "kernels/attention/nibble_pairs.h"

namespace TALLY_KERNELS_TIER {

void attend_f32_avx512(const AttendArgs& args) {
  attention::attend_tiles<attention::FloatRows<Lanes512, attention::F32Cache<Lanes512>>>(args);
}
void attend_bf16_avx512(const AttendArgs& args) {
  attention::attend_tiles<attention::FloatRows<Lanes512, attention::Bf16Cache<Lanes512>>>(args);
}
void attend_int8_avx512(const AttendArgs& args) {
  attention::attend_tiles<attention::Int8Pairs<Lanes512>>(args);
}
void attend_k8v4_avx512(const AttendArgs& args) {
  using Keys = attention::Int8Keys<Lanes512, attention::Int8Pairs<Lanes512>>;
  attention::attend_tiles<attention::NibbleRows<Lanes512, Keys, attention::NibblePairs<Lanes512>>>(args);
}
void attend_int4_avx512(const AttendArgs& args) {
  using Keys = attention::NibbleKeys<Lanes512>;
  attention::attend_tiles<attention::NibbleRows<Lanes512, Keys, attention::NibblePairs<Lanes512>>>(args);
}

}  // namespace TALLY_KERNELS_TIER
