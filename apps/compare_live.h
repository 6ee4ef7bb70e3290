#pragma once
// The runs that are compared; those of two live servers are measured in turns.

#include "base/result.h"
#include "cli.h"
#include "measure/run.h"

#include <string>
#include <vector>

namespace tally::apps {

// The pairs of a comparison, read or just measured.
struct PairedRuns {
  std::vector<measure::Run> runs;  // A1 B1 A2 B2 ...
  std::vector<std::string> paths;  // where each is stored
  bool same = false;               // both arms are one address
  bool interrupted = false;        // what was complete by then is stored
};

// Whether `arguments` are addresses and not stored runs.
bool are_servers(const std::vector<std::string>& arguments);

// Sends the workload to both servers, one after the other, --repetitions times in the order A B, B A, ...;
// stores every run.
// Errors: kUsage for other than two servers and one level; those of the load generator and of the store.
base::Result<PairedRuns> measure_live(const Invocation& call);

}  // namespace tally::apps
