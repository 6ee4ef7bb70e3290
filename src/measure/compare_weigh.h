// From the differences of pairs to a line of the table.
#pragma once

#include "measure/compare.h"
#include "measure/pairs.h"

#include <span>

namespace tally::measure {

// Estimate, interval and p of the differences. They are log(x_B / x_A); better_sign turns them so that better
// is > 0.
void weigh(ComparedMetric& out, std::span<const PairDifference> differences, const CompareOptions& options);

}  // namespace tally::measure
