// int8 on AVX-VNNI: the form of int8_planes.h, eight lanes.
#include "kernels/attention/attention.h"
#include "kernels/attention/int8_planes.h"
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

}  // namespace TALLY_KERNELS_TIER
