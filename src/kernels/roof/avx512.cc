// Roofs of AVX-512BW. The operands come from an argument, so that nothing is known when this is compiled.

#include "kernels/intrin512.h"
#include "kernels/roof/chains.h"
#include "kernels/roof/loops.h"
#include "kernels/roof/streams.h"

namespace TALLY_KERNELS_TIER {
namespace {

inline __attribute__((always_inline)) uint64_t sum512(__m512i v) {
  uint64_t lanes[8], sum = 0;
  _mm512_storeu_si512(lanes, v);
  for (const uint64_t lane : lanes) sum += lane;
  return sum;
}

template <size_t kStreams, size_t kPrefetch>
inline uint64_t read512(const RoofArgs& args) {
  __m512i sum[kStreams];
  for (__m512i& s : sum) s = _mm512_setzero_si512();
  walk_streams<kStreams, kPrefetch>(args, [&](const std::byte* p, size_t s) __attribute__((always_inline)) {
    sum[s] = _mm512_add_epi64(sum[s], _mm512_load_si512(p));
  });
  for (size_t s = 1; s < kStreams; ++s) sum[0] = _mm512_add_epi64(sum[0], sum[s]);
  return sum512(sum[0]);
}

}  // namespace

uint64_t roof_read1_512(const RoofArgs& args) { return read512<1, 0>(args); }
uint64_t roof_read2_512(const RoofArgs& args) { return read512<2, 4096>(args); }
uint64_t roof_read8_512(const RoofArgs& args) { return read512<8, 0>(args); }

uint64_t roof_vpmaddubsw_512(const RoofArgs& args) {
  const __m512i w = _mm512_set1_epi8(static_cast<char>(args.rounds & 1));
  return sum512(run_chains(
      args.rounds,
      [](int i) __attribute__((always_inline)) { return _mm512_set1_epi8(static_cast<char>(i)); },
      [&](__m512i v) __attribute__((always_inline)) { return _mm512_maddubs_epi16(v, w); },
      [](__m512i a, __m512i b) __attribute__((always_inline)) { return _mm512_add_epi16(a, b); }));
}

uint64_t roof_fma_512(const RoofArgs& args) {
  const __m512 part = _mm512_set1_ps(1.0f / static_cast<float>(2 + args.rounds % 2));
  return sum512(_mm512_castps_si512(run_chains(
      args.rounds, [](int i) __attribute__((always_inline)) { return _mm512_set1_ps(static_cast<float>(i)); },
      [&](__m512 v) __attribute__((always_inline)) { return _mm512_fmadd_ps(v, part, part); },
      [](__m512 a, __m512 b) __attribute__((always_inline)) { return _mm512_add_ps(a, b); })));
}

}  // namespace TALLY_KERNELS_TIER
