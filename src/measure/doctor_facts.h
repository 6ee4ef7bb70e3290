// What Linux tells of a machine, read below any root, so that another machine's /proc and /sys can be looked
// at.
#pragma once

#include "base/result.h"
#include "measure/machine.h"

#include <cstdint>
#include <optional>
#include <set>
#include <string>

namespace tally::measure {

struct CpuFacts {
  std::string model;
  std::set<std::string> flags;  // of the first CPU, as Linux names them
  uint32_t online = 0;          // CPUs of the machine
  uint32_t allowed = 0;         // of them, that this process may run on
  uint32_t cores = 0;           // distinct cores among the allowed
  bool has_smt = false;         // two allowed CPUs are one core
  std::optional<double> quota;  // CPUs that the cgroup gives, the least of its ancestors
  uint64_t throttled_periods = 0, periods = 0;
  std::string governor, driver;      // of frequency; "": not told
  double mhz_now = 0, mhz_most = 0;  // 0: not told
  std::string clock_source;
  uint32_t numa_nodes = 0;  // 0: not told
  double load = 0;          // average of a minute
};

struct MemoryFacts {
  uint64_t total = 0, available = 0, swap_total = 0, swap_used = 0;
  uint64_t commit_limit = 0, committed = 0;
  std::string huge_pages;  // the word of transparent_hugepage/enabled; "": none
  std::optional<uint64_t> swappiness, overcommit;
  std::optional<uint64_t> cgroup_limit, cgroup_used;  // the tightest of the ancestors
};

// Absent: unlimited, or not told.
struct LimitFacts {
  std::optional<uint64_t> locked_bytes,
      open_files;  // of open files the hard one: serve raises the soft one to it
};

struct MachineFacts {
  CpuFacts cpu;
  MemoryFacts memory;
  LimitFacts limits;
};

// Errors: kNoInput when there is no /proc below `root`.
base::Result<MachineFacts> read_facts(const std::string& root = "/");

}  // namespace tally::measure
