#pragma once
// What is replayed: requests as lengths, instants and shared prefixes, without any text. Built in and seeded,
// or read from the formats in which traces of real services are published.

#include "base/ids.h"
#include "base/result.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace tally::sched::simulate {

inline constexpr uint32_t kTokensMax = 1U << 24;  // of a prompt, and of an answer
inline constexpr uint32_t kChoicesMax = 1024;
inline constexpr uint64_t kRequestsMax = 10'000'000, kSequencesMax = 20'000'000;

struct TraceRequest {
  Tick arrival = 0;                 // after the first request's
  uint32_t prompt = 0, output = 0;  // tokens, one each at least; every choice gets `output`
  uint32_t choices = 1;
  uint32_t shared = 0;   // its first prompt tokens, which other requests may have too
  uint32_t segment = 0;  // ... are those that Trace::segments names from this index on
};

struct Trace {
  std::vector<TraceRequest> requests;  // by arrival
  // Names of stretches of tokens: equal names are equal tokens. A request's `shared` tokens lie in
  // ceil(shared / segment_tokens) of them.
  std::vector<uint32_t> segments;
  uint32_t segment_tokens = kTokensMax;
  uint64_t skipped = 0;  // rows of requests that had failed when they were recorded

  uint64_t prompt_tokens() const;
  uint64_t output_tokens() const;  // of all choices
  uint64_t sequences() const;
};

// Writes the ids of a request's prompt: those of its segments, then ids that no other request has.
void prompt_ids(const Trace& trace, size_t request, std::vector<TokenId>& into);

struct TraceShape {
  uint32_t requests = 1000;
  double rate = 1;  // requests a second
  uint64_t seed = 1;
};

// The built-in traces: mix, shared-prefix, bursty.
std::span<const std::string_view> trace_names();
// Builds the trace of that name: the same on every machine. Empty: none is called so.
// Requires: 1 <= requests <= kRequestsMax, rate > 0.
std::optional<Trace> build_trace(std::string_view name, const TraceShape& shape);

// Reads a trace: CSV with a header, or one JSON object a line. Requests come out by arrival, the first at 0.
// Errors: kBadData with the line, the column or key, the value, and what is allowed.
base::Result<Trace> parse_trace(std::string_view text);

// Keeps the first `requests`, and stretches the arrivals to `rate` a second. 0: as they are.
void reshape(Trace& trace, uint32_t requests, double rate);

}  // namespace tally::sched::simulate
