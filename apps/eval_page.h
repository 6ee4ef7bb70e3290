#pragma once
// What `eval` shows: a table, or one JSON object.

#include "measure/eval.h"

#include <string>

namespace tally::apps {

struct EvalPage {
  const measure::EvalReport& report;
  const measure::Run& run;
  std::string saved, mode;

  void print_json() const;
  void print_table() const;
};

}  // namespace tally::apps
