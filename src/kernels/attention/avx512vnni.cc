// int8 on AVX-512 VNNI: the form of int8_planes.h, sixteen lanes.
#include "kernels/attention/attention.h"
#include "kernels/attention/int8_planes.h"
#include "kernels/attention/lanes_512.h"

namespace TALLY_KERNELS_TIER {
namespace {

struct VnniLanes512 : Lanes512 {
  static TALLY_INLINE I dpbusd(I sum, I u, I s) { return _mm512_dpbusd_epi32(sum, u, s); }
};

}  // namespace

void attend_int8_avx512vnni(const AttendArgs& args) {
  attention::attend_tiles<attention::Int8Planes<VnniLanes512>>(args);
}

}  // namespace TALLY_KERNELS_TIER
