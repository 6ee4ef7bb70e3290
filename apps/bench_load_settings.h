#pragma once
// From the settings of `tally bench load` to what is measured.

#include "base/result.h"
#include "cli.h"
#include "measure/load.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tally::apps {

struct LoadPlan {
  measure::LoadSpec spec;
  std::vector<measure::Level> levels;
  uint32_t repetitions = 1;
  bool find_capacity = false;
};

// Whether --workload names a file, which has requests of its own.
bool is_workload_file(const std::string& workload);

// Errors: kUsage names the flag, the value and what is allowed.
base::Result<LoadPlan> load_plan(const Invocation& call);

// Write into a run what it was called for: `label`, the command, its arguments and settings, this program.
void note_call(measure::Run& run, const Invocation& call, std::string_view command, const std::string& label);

}  // namespace tally::apps
