// Whether the figures of a block may be believed: what the generator, the machine and the server did
// meanwhile.
#pragma once

#include "measure/generator.h"
#include "measure/machine.h"
#include "measure/run.h"
#include "measure/summary.h"
#include "measure/watch.h"
#include "measure/watch_proc.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tally::measure {

// State of the world at one end of a block.
struct Surroundings {
  MachineTimes machine;
  std::optional<ProcessTimes> server;
  ServerMetrics metrics;
  double clock_offset_s = 0;
};

struct AuditQuestion {
  const BlockTrace& trace;
  const Figures& figures;
  Surroundings before, after;
  uint32_t cpus = 1;
  bool has_exact_lengths = false;  // prompts were sent as ids
  bool shares_prefixes = false;    // cached tokens are no surprise
  bool is_local = false;           // the server's process is known
};

struct Audit {
  std::vector<std::string> reasons, warnings;  // reasons: why the run is INVALID
  nlohmann::json figures;                      // keys of `results` that are about the run itself
};
Audit audit(const AuditQuestion& question);

}  // namespace tally::measure
