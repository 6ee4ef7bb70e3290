#pragma once
// What `tally bench engine` prints.

#include "bench_engine.h"

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace tally::apps {

struct EngineBenchPage {
  const EngineBenchSettings& settings;
  const EngineBenchReport& report;
  const std::vector<std::string>& warnings;

  nlohmann::json json() const;  // what --json prints
  void print_table() const;     // for people
};

}  // namespace tally::apps
