// The int8 roof of AVX-512 VNNI: vpdpbusd on 512 bits.

#include "kernels/intrin512.h"
#include "kernels/roof/chains.h"
#include "kernels/roof/loops.h"

namespace TALLY_KERNELS_TIER {

uint64_t roof_vpdpbusd_512(const RoofArgs& args) {
  const __m512i w = _mm512_set1_epi8(static_cast<char>(args.rounds & 1));
  uint64_t lanes[8], sum = 0;
  _mm512_storeu_si512(
      lanes, run_chains(
                 args.rounds, [](int i) __attribute__((always_inline)) { return _mm512_set1_epi32(i); },
                 [&](__m512i v) __attribute__((always_inline)) { return _mm512_dpbusd_epi32(v, w, w); },
                 [](__m512i a, __m512i b) __attribute__((always_inline)) { return _mm512_add_epi32(a, b); }));
  for (const uint64_t lane : lanes) sum += lane;
  return sum;
}

}  // namespace TALLY_KERNELS_TIER
