// int8, k8v4 and int4 on AVX-VNNI: the forms of int8_planes.h and nibble_planes.h, eight lanes.
#include "kernels/attention/attention.h"
#include "kernels/attention/nibble_planes.h"
#include "kernels/intrin_vnni.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct VnniLanes256 : attention::Lanes256 {
  static TALLY_INLINE I dpbusd(I sum, I u, I s) { return dpbusd_256(sum, u, s); }
};

}  // namespace

void attend_int8_avxvnni(const AttendArgs& args) {
  attention::attend_tiles<attention::Int8Planes<VnniLanes256>>(args);
}
void attend_k8v4_avxvnni(const AttendArgs& args) {
  using Keys = attention::Int8Keys<VnniLanes256, attention::Int8Planes<VnniLanes256>>;
  attention::attend_tiles<attention::NibbleRows<VnniLanes256, Keys, attention::NibblePlanes<VnniLanes256>>>(
      args);
}
void attend_int4_avxvnni(const AttendArgs& args) {
  using Keys = attention::NibbleKeys<VnniLanes256>;
  attention::attend_tiles<attention::NibbleRows<VnniLanes256, Keys, attention::NibblePlanes<VnniLanes256>>>(
      args);
}

}  // namespace TALLY_KERNELS_TIER
