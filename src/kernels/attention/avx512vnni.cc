// int8, k8v4 and int4 on AVX-512 VNNI: the forms of int8_planes.h and nibble_planes.h, sixteen lanes.
#include "kernels/attention/attention.h"
#include "kernels/attention/lanes_512.h"
#include "kernels/attention/nibble_planes.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct VnniLanes512 : Lanes512 {
  static TALLY_INLINE I dpbusd(I sum, I u, I s) { return _mm512_dpbusd_epi32(sum, u, s); }
};

}  // namespace

void attend_int8_avx512vnni(const AttendArgs& args) {
  attention::attend_tiles<attention::Int8Planes<VnniLanes512>>(args);
}
void attend_k8v4_avx512vnni(const AttendArgs& args) {
  using Keys = attention::Int8Keys<VnniLanes512, attention::Int8Planes<VnniLanes512>>;
  attention::attend_tiles<attention::NibbleRows<VnniLanes512, Keys, attention::NibblePlanes<VnniLanes512>>>(
      args);
}
void attend_int4_avx512vnni(const AttendArgs& args) {
  using Keys = attention::NibbleKeys<VnniLanes512>;
  attention::attend_tiles<attention::NibbleRows<VnniLanes512, Keys, attention::NibblePlanes<VnniLanes512>>>(
      args);
}

}  // namespace TALLY_KERNELS_TIER
