#pragma once
// Counts what XGrammar holds, and ends what takes too much: its memory comes from here (cmake/xgrammar), and
// an allocation beyond a budget of bytes or time throws, which it survives as any code survives
// std::bad_alloc. Time is the thread's own: what else runs on the machine must not decide. Private to the
// room.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace tally::sample {

struct Meter {
  int64_t live_bytes = 0;  // allocated minus freed while it ran
  int64_t peak_bytes = 0;
  int64_t live_bytes_max = std::numeric_limits<int64_t>::max();
  int64_t cpu_us_max = std::numeric_limits<int64_t>::max();  // of each run
  int64_t deadline_us = 0;                                   // of this run, base::thread_cpu_us()
  int64_t allocations = 0;
  const std::atomic<bool>* stop = nullptr;  // once true, it is out of time
  bool out_of_bytes = false, out_of_time = false;
  std::string warning;  // the first

  // Counts what this thread does until the end of the scope; whether time was enough is known by then, though
  // nothing were allocated. Not nested.
  class Running {
   public:
    explicit Running(Meter& meter);
    ~Running();
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
  };
};

}  // namespace tally::sample
