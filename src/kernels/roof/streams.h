#pragma once
// The walk of the read loops: a thread's bytes in kStreams equal parts that are read side by side, a cache
// line of each at a time. Static functions, see tier.h.

#include "kernels/roof.h"
#include "kernels/tier.h"

#include <xmmintrin.h>

namespace TALLY_KERNELS_TIER {
namespace {

// read(p): takes in the 64 bytes at p.
template <size_t kStreams, size_t kPrefetch, class Read>
inline __attribute__((always_inline)) void walk_streams(const RoofArgs& args, Read read) {
  const size_t part = args.bytes / kStreams;
  for (size_t i = 0; i < part; i += 64) {
#pragma GCC unroll 8
    for (size_t s = 0; s < kStreams; ++s) {
      const std::byte* p = args.data + s * part + i;
      if constexpr (kPrefetch > 0) _mm_prefetch(reinterpret_cast<const char*>(p + kPrefetch), _MM_HINT_T0);
      read(p, s);
    }
  }
}

}  // namespace
}  // namespace TALLY_KERNELS_TIER
