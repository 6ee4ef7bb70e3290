// The forms of float_rows.h and int8_pairs.h on AVX-512BW, sixteen lanes. In one file, as the emulated copy
// of each costs seconds to compile.
#include "kernels/attention/attention.h"
#include "kernels/attention/float_rows.h"
#include "kernels/attention/int8_pairs.h"
#include "kernels/attention/lanes_512.h"

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

}  // namespace TALLY_KERNELS_TIER
