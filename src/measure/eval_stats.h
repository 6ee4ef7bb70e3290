// What many scored positions and questions say together.
#pragma once

#include "measure/pairs.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace tally::measure {

// A mean, and where it lies with 95 %.
struct Estimate {
  double value = 0;
  Interval interval;
};

inline constexpr size_t kEvalBlock = 512;  // neighbouring tokens err together: they are drawn together

// The mean of values in order, by the bootstrap over blocks of `block` neighbours; of shorter ones where that
// would be fewer than 8, which makes the interval of a short text a little too narrow. The same seed gives
// the same interval. Requires: not empty.
Estimate block_mean(std::span<const double> values, size_t block, uint64_t seed);

// Two-sided p of items that only one of two got right, if either were as likely: exact binomial (McNemar).
double mcnemar_p(size_t only_a, size_t only_b);

}  // namespace tally::measure
