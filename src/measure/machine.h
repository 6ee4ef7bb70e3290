// What a figure was measured on, and how busy it was meanwhile.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

namespace tally::measure {

// What can be said of this machine without measuring: the object `machine` of run.json. What the system does
// not tell is null. `fingerprint`: SHA-256 of all the rest, equal for equal machines.
nlohmann::json machine_json();

// CPU seconds since boot, of all CPUs together.
struct MachineTimes {
  double busy_s = 0, steal_s = 0, all_s = 0;  // all: with idle ones
  uint64_t swapped_in = 0;                    // pages
};
MachineTimes machine_times();
uint32_t machine_cpus();

// Whose the CPUs were since its construction: shares of the time of all of them. Coarse: the kernel counts in
// 10 ms.
class CpuWatch {
 public:
  CpuWatch();
  double foreign() const;  // other processes
  double steal() const;    // the hypervisor, of what was wanted

 private:
  MachineTimes begin_;
  double own_s_ = 0;
};

}  // namespace tally::measure
