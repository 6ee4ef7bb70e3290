#pragma once
// From the settings of `eval` to what is evaluated, and on which text.

#include "cli.h"
#include "measure/eval.h"

#include <cstdint>
#include <string>

namespace tally::apps {

struct EvalPlan {
  engine::ScoreRequest score;
  measure::EvalOptions options;
  measure::EvalText text;
  std::string mode, svg;
  uint64_t memory_bytes = 0;
};

// Reads the text too. Errors: kUsage (a flag), kConfig (values impossible together), kNoInput (the text).
base::Result<EvalPlan> eval_plan(const Invocation& call, measure::EvalKind kind, const std::string& model);

}  // namespace tally::apps
