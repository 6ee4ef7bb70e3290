#pragma once
// From the settings of `tally bench load` to what is measured.

#include "base/result.h"
#include "cli.h"
#include "measure/load.h"

#include <cstdint>
#include <vector>

namespace tally::apps {

struct LoadPlan {
  measure::LoadSpec spec;
  std::vector<measure::Level> levels;
  uint32_t repetitions = 1;
  bool find_capacity = false;
};

// Errors: kUsage names the flag, the value and what is allowed.
base::Result<LoadPlan> load_plan(const Invocation& call);

}  // namespace tally::apps
