#pragma once
// The one place that asks the time.

#include <cstdint>

namespace tally::base {

// Monotonic microseconds.
int64_t now_us();
// Microseconds that this thread has run.
int64_t thread_cpu_us();
// Wall clock, Unix seconds (for `created` only; nothing is measured with it).
int64_t wall_seconds();

}  // namespace tally::base
