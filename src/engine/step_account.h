#pragma once
// Where the time went: counters and histograms of the engine thread. Each is incremented where the fact
// becomes final, once.

#include "engine/engine.h"
#include "kv/ledger.h"

#include <array>
#include <cstdint>
#include <span>

namespace tally::engine {

// Counts by upper edges, no allocation.
class Tally {
 public:
  static constexpr size_t kEdgesMax = 32;
  Tally() = default;
  explicit Tally(std::span<const double> edges) : edges_(edges) {}
  void observe(double value, uint64_t times = 1);
  Histogram snapshot() const;

 private:
  std::span<const double> edges_;
  std::array<uint64_t, kEdgesMax + 1> counts_{};
  double sum_ = 0;
};

// Seconds of the engine thread by phase, and the edges of every histogram (metrics reference).
struct StepAccount {
  explicit StepAccount(uint32_t max_model_len);

  Stats totals;  // the plain counters; histograms stay empty here
  Tally ttft, inter_token, time_per_output_token, e2e, queue, prefill, decode, inference;
  Tally prompt_tokens, generation_tokens, iteration_tokens;
  Tally step_prefill, step_decode, step_mixed;
  Tally prefill_computed, prefill_per_token, step_model_error;
  kv::BlockAges block_ages;  // the ledger's

  // A finished sequence joins the latency histograms (not if it was cancelled or failed).
  void finished(Finish finish, const Receipt& receipt);
  // shares_prompt: the prompt counts for another choice of the request. Several tokens of one step are one gap
  // and then none.
  void prompt(const Receipt& receipt);
  void tokens(uint32_t count, const Receipt& receipt, int64_t previous_us, int64_t now_us, bool shares_prompt);
  // Of `drafted` tokens of a sequence the first were accepted.
  void drafts(DraftSource source, uint32_t drafted, uint32_t accepted);
  void step(uint32_t prefill_rows, uint32_t decode_rows, double seconds);
  void work(const StepRecord& record);  // its rows and bytes
  // The forward pass of a step, put down to the roof that asks for more of it, and what the step's prediction
  // was worth.
  void time(const StepRecord& record, double forward_s, const StepRoofs& roofs);
  Stats snapshot() const;
};

}  // namespace tally::engine
