#pragma once
// From a file and the flags of `tally ablate` to what is run.

#include "base/result.h"
#include "bench_load_settings.h"
#include "cli.h"
#include "measure/ablate.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tally::apps {

struct AblatePlan {
  measure::AblateDesign design;
  LoadPlan load;  // its server's address is told later
  std::string model, label, out;
  uint32_t rounds = 8;
  std::vector<std::string> eval;      // arguments of `eval kld`; empty: no quality is measured
  std::vector<std::string> kv_types;  // of the arms, each once

  size_t runs() const { return size_t{rounds} * design.arms.size(); }
};

// Everything that can be refused is refused here, before anything starts: flags and values against the tables
// of serve, bench load and eval kld, and the memory of every arm against the plan of the model.
// Errors: kUsage, kBadData, kNoInput name the file, the key's path and what is allowed; those of the plan.
base::Result<AblatePlan> ablate_plan(const Invocation& call);

// "--kv-type=int8" for each of `flags`, as a command line has them.
std::vector<std::string> flag_arguments(const measure::Flags& flags);

}  // namespace tally::apps
