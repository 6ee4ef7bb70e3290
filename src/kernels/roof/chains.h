#pragma once
// Twelve chains of one instruction: it waits 3 to 5 cycles for its own last result, and two of them can begin in a
// cycle. `step` and `add` must work on lanes of one width: where they do not, gcc 12 copies every chain in every round.
// Static functions, see tier.h.

#include "kernels/tier.h"

#include <cstddef>
#include <cstdint>

namespace TALLY_KERNELS_TIER {
namespace {

// Begins chain i with start(i), puts each through step `rounds` times, and adds them up with add.
template <class Start, class Step, class Add>
inline __attribute__((always_inline)) auto run_chains(uint64_t rounds, Start start, Step step, Add add) {
  auto a = start(0), b = start(1), c = start(2), d = start(3), e = start(4), f = start(5);
  auto g = start(6), h = start(7), i = start(8), j = start(9), k = start(10), l = start(11);
  for (uint64_t n = 0; n < rounds; ++n) {
    a = step(a), b = step(b), c = step(c), d = step(d), e = step(e), f = step(f);
    g = step(g), h = step(h), i = step(i), j = step(j), k = step(k), l = step(l);
  }
  return add(add(add(a, b), add(c, d)), add(add(add(e, f), add(g, h)), add(add(i, j), add(k, l))));
}

}  // namespace
}  // namespace TALLY_KERNELS_TIER
