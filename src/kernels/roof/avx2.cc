// Roofs of AVX2. The operands come from an argument, so that nothing is known when this is compiled.

#include "kernels/roof/chains.h"
#include "kernels/roof/loops.h"
#include "kernels/roof/streams.h"

#include <immintrin.h>

namespace tally::kernels {
namespace {

inline __attribute__((always_inline)) uint64_t sum256(__m256i v) {
  uint64_t lanes[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), v);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

template <size_t kStreams, size_t kPrefetch>
inline uint64_t read256(const RoofArgs& args) {
  __m256i sum[kStreams];
  for (__m256i& s : sum) s = _mm256_setzero_si256();
  walk_streams<kStreams, kPrefetch>(args, [&](const std::byte* p, size_t s) __attribute__((always_inline)) {
    const auto* v = reinterpret_cast<const __m256i*>(p);
    sum[s] = _mm256_add_epi64(sum[s], _mm256_add_epi64(_mm256_load_si256(v), _mm256_load_si256(v + 1)));
  });
  for (size_t s = 1; s < kStreams; ++s) sum[0] = _mm256_add_epi64(sum[0], sum[s]);
  return sum256(sum[0]);
}

}  // namespace

uint64_t roof_read1_256(const RoofArgs& args) { return read256<1, 0>(args); }
uint64_t roof_read2_256(const RoofArgs& args) { return read256<2, 4096>(args); }
uint64_t roof_read8_256(const RoofArgs& args) { return read256<8, 0>(args); }

uint64_t roof_vpmaddubsw_256(const RoofArgs& args) {
  const __m256i w = _mm256_set1_epi8(static_cast<char>(args.rounds & 1));
  return sum256(run_chains(
      args.rounds,
      [](int i) __attribute__((always_inline)) { return _mm256_set1_epi8(static_cast<char>(i)); },
      [&](__m256i v) __attribute__((always_inline)) { return _mm256_maddubs_epi16(v, w); },
      [](__m256i a, __m256i b) __attribute__((always_inline)) { return _mm256_add_epi16(a, b); }));
}

uint64_t roof_fma_256(const RoofArgs& args) {
  const __m256 part = _mm256_set1_ps(1.0f / static_cast<float>(2 + args.rounds % 2));
  return sum256(_mm256_castps_si256(run_chains(
      args.rounds, [](int i) __attribute__((always_inline)) { return _mm256_set1_ps(static_cast<float>(i)); },
      [&](__m256 v) __attribute__((always_inline)) { return _mm256_fmadd_ps(v, part, part); },
      [](__m256 a, __m256 b) __attribute__((always_inline)) { return _mm256_add_ps(a, b); })));
}

}  // namespace tally::kernels
