#pragma once
// What the kernel says about this process, for /metrics.

#include <cstdint>

namespace tally::serve {

struct ProcessStats {
  double cpu_s = 0, start_s = 0, steal_s = 0;
  uint64_t open_fds = 0, max_fds = 0, threads = 0, major_faults = 0;
};
ProcessStats process_stats();

}  // namespace tally::serve
