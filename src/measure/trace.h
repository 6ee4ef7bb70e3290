// A stored run on one timeline for chrome://tracing and Perfetto: requests as the client saw them above the
// steps of the engine that served them.
#pragma once

#include "measure/run.h"

#include <cstdint>
#include <string>

namespace tally::measure {

struct TraceOptions {
  std::string name;                  // of the run
  uint64_t bytes_max = 200'000'000;  // viewers end before 1 GB
};

struct Trace {
  std::string json;  // an object with traceEvents, in order of time
  size_t events = 0;
  // What went over bytes_max, counters first, then the shortest steps, then the last requests.
  size_t dropped_counters = 0, dropped_steps = 0, dropped_requests = 0;
};

// Process 1, the client: each request as async events (b, e) with phases within, and its sending as a slice
// (X). Process 2, the server: each step as a slice, counters (C) of requests, KV blocks and memory. A flow
// (s, f) leads from a request's sending to the step that began its prompt.
// Ensures: every b has its e and phases lie within their request; slices of a track do not overlap; `ts`
// ascends, from 0 on, in microseconds of the client's clock with three decimals; never more than bytes_max
// bytes.
Trace trace_of(const Run& run, const TraceOptions& options);

}  // namespace tally::measure
