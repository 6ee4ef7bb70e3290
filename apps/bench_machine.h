#pragma once
// What a figure was measured on, and whether something else ran meanwhile.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tally::apps {

// CPU, cores, memory, page policy and kernel of this machine, and a fingerprint of these. Without roofs.
nlohmann::json machine_json(std::string_view isa);

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
  struct Ticks {
    uint64_t busy = 0, steal = 0, all = 0;  // of all CPUs, in clock ticks
    uint64_t own = 0;                       // of this process
  };
  static Ticks read();
  Ticks begin_;
  double load_ = 0;
};

// Median, least and most of the repetitions of one figure.
struct Spread {
  double median = 0, min = 0, max = 0;
};
// Requires: values is not empty.
Spread spread(std::vector<double> values);

}  // namespace tally::apps
