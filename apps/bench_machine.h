#pragma once
// What a figure was measured on, and whether something else ran meanwhile.

#include "measure/machine.h"

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tally::apps {

// What runs say of their machine (measure/machine.h), with the kernels' tier and the largest cache. Without
// roofs.
nlohmann::json machine_json(std::string_view tier);

// Bytes of the largest cache, as the CPU tells; a guess of 32 MiB where it does not.
uint64_t last_cache_bytes();

// Watches the machine from its construction on.
class MachineWatch {
 public:
  MachineWatch();
  // What makes the figures measured since doubtful, a sentence each: other processes' CPU time, time that the
  // hypervisor took, a load at the start.
  std::vector<std::string> warnings() const;

 private:
  measure::CpuWatch cpus_;
  double load_ = 0;
};

// Median, least and most of the repetitions of one figure.
struct Spread {
  double median = 0, min = 0, max = 0;
};
// Requires: values is not empty.
Spread spread(std::vector<double> values);

// Since an instant of base::now_us().
double seconds_since(int64_t begin_us);

}  // namespace tally::apps
