#pragma once
// f(I) for I = 0 .. N-1, I a constant: arrays indexed by it become registers (gcc 12 spills them in plain
// loops).

#include <utility>

#define TALLY_INLINE __attribute__((always_inline))

namespace tally::kernels::attention {
namespace {

template <int N, class F>
inline TALLY_INLINE void unrolled(F f) {
  [&]<int... I>(std::integer_sequence<int, I...>) __attribute__((always_inline)) {
    (f(std::integral_constant<int, I>{}), ...);
  }(std::make_integer_sequence<int, N>{});
}

}  // namespace
}  // namespace tally::kernels::attention
