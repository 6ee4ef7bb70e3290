// From the differences of pairs to a line of the table.
#pragma once

#include "measure/compare.h"

#include <span>

namespace tally::measure {

// Estimate, interval and p of the differences of pairs. They are log(x_B / x_A), and turned so that better is
// > 0.
void weigh(ComparedMetric& out, std::span<const double> differences);

}  // namespace tally::measure
