#pragma once
// What this machine lets the process use: cores and memory, within affinity and cgroups. (The ISA:
// kernels/isa.h.)

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tally::base {

struct CpuAllowance {
  uint32_t logical = 1;   // CPUs in the affinity mask
  uint32_t physical = 1;  // distinct cores among them
  double quota = 0;       // CPUs of the cgroup's quota; 0: none
  // Threads worth starting: physical cores, at most the quota rounded up.
  uint32_t usable = 1;
  std::string model;  // "AMD EPYC …"
};
CpuAllowance cpu_allowance();

// A number of a cgroup file; nullopt: no limit ("max" in version 2, -1 in version 1), or no number.
std::optional<uint64_t> parse_limit(std::string_view text);

// min(MemAvailable, cgroup limit - cgroup use over all ancestors), bytes. cgroup v2 and v1.
uint64_t memory_allowance();
uint64_t memory_total();

}  // namespace tally::base
