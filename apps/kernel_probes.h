#pragma once
// The matrix kernels of this CPU as probes of its roofs.

#include "measure/roof.h"

#include <vector>

namespace tally::apps {

// The best kernel of every weight type, with each of measure::kKernelRows: a matrix small enough to stay in a
// core's caches, so that memory is no matter. Each probe has what it works on.
std::vector<measure::RoofProbe> kernel_probes();

}  // namespace tally::apps
