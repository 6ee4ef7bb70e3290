// What Linux tells of this thread and of the process that listens on a local port.
#pragma once

#include "measure/run.h"

#include <cstdint>
#include <optional>

namespace tally::measure {

// Of the calling thread.
double thread_cpu_s();

struct ProcessTimes {
  double cpu_s = 0;
  uint64_t major_faults = 0;
};
// Absent: no such process, or not ours to look at.
std::optional<ProcessTimes> process_times(int pid);

// Fills rss_anon, rss_file and swap.
void read_process_memory(int pid, MemorySample& out);

// The process that listens on a TCP port of this machine. Absent: none whose descriptors may be read.
std::optional<int> listener_of(uint16_t port);

// Wall clock less monotonic clock: jumps when somebody sets the clock.
double clock_offset_s();

}  // namespace tally::measure
