// When requests arrive in an open loop.
#pragma once

#include "measure/load.h"

#include <cstdint>
#include <vector>

namespace tally::measure {

// `count` ascending instants, seconds from the start. Gaps are drawn and stretched so that they add up to
// count / rate: what is offered does not depend on the seed. Requires: rate > 0, no trace.
std::vector<double> arrival_times(const ArrivalSpec& spec, size_t count, double rate, uint64_t seed);

}  // namespace tally::measure
