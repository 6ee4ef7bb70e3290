// f32 and bf16 caches on AVX2: the form of float_rows.h.
#include "kernels/attention/attention.h"
#include "kernels/attention/float_rows.h"

namespace tally::kernels {

void attend_f32_avx2(const AttendArgs& args) {
  using attention::Lanes256;
  attention::attend_tiles<attention::FloatRows<Lanes256, attention::F32Cache<Lanes256>>>(args);
}
void attend_bf16_avx2(const AttendArgs& args) {
  using attention::Lanes256;
  attention::attend_tiles<attention::FloatRows<Lanes256, attention::Bf16Cache<Lanes256>>>(args);
}

}  // namespace tally::kernels
