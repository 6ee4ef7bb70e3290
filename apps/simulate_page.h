#pragma once
// What `tally simulate` prints.

#include "sched/simulate/replay.h"

#include <cstdint>
#include <string>
#include <vector>

namespace tally::apps {

struct SimulatedRun {
  sched::simulate::Scenario scenario;
  sched::simulate::Report report;
};

struct SimulatePage {
  std::string trace_name;
  const sched::simulate::Trace& trace;
  double rate = 0;                 // 0: as the file has them
  const uint64_t* seed = nullptr;  // null: of a file
  const std::vector<SimulatedRun>& runs;

  void print_json() const;   // one object on stdout
  void print_table() const;  // for people
};

// As the settings write it.
const char* scheme_name(sched::simulate::Scheme scheme);

}  // namespace tally::apps
