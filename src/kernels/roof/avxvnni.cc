// The int8 roof of AVX-VNNI: vpdpbusd on 256 bits.

#include "kernels/intrin_vnni.h"
#include "kernels/roof/chains.h"
#include "kernels/roof/loops.h"

namespace TALLY_KERNELS_TIER {

uint64_t roof_vpdpbusd_256(const RoofArgs& args) {
  const __m256i w = _mm256_set1_epi8(static_cast<char>(args.rounds & 1));
  uint64_t lanes[4];
  _mm256_storeu_si256(
      reinterpret_cast<__m256i*>(lanes),
      run_chains(
          args.rounds, [](int i) __attribute__((always_inline)) { return _mm256_set1_epi32(i); },
          [&](__m256i v) __attribute__((always_inline)) { return dpbusd_256(v, w, w); },
          [](__m256i a, __m256i b) __attribute__((always_inline)) { return _mm256_add_epi32(a, b); }));
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

}  // namespace TALLY_KERNELS_TIER
