// int8 on AVX2: the form of int8_pairs.h.
#include "kernels/attention/attention.h"
#include "kernels/attention/int8_pairs.h"

namespace tally::kernels {

void attend_int8_avx2(const AttendArgs& args) {
  attention::attend_tiles<attention::Int8Pairs<attention::Lanes256>>(args);
}

}  // namespace tally::kernels
