#pragma once
// What `tally bench engine` prints.

#include "bench_engine.h"

#include <string>
#include <vector>

namespace tally::apps {

struct EngineBenchPage {
  const EngineBenchSettings& settings;
  const EngineBenchReport& report;
  const std::vector<std::string>& warnings;

  void print_json() const;   // one object on stdout
  void print_table() const;  // for people
};

}  // namespace tally::apps
