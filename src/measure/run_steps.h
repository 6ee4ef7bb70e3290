// The steps of a stored run as figures, on the clock of its requests.
#pragma once

#include "measure/run.h"
#include "measure/step_kind.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

namespace tally::measure {

// Ties t_us of the steps to the seconds of the requests.
struct RunClock {
  double server_us_at_0 = 0;
  std::optional<double> error_s;  // absent: not measured, the first step is taken to follow the first request
};
// Absent: the run has no steps.
std::optional<RunClock> run_clock(const Run& run);

// Rows, blocks and requests as /v1/steps tells them; 0 where it does not.
struct RunStep {
  uint64_t number = 0;
  double begin_s = 0, length_s = 0, predicted_s = 0;
  StepKind kind = StepKind::kDecode;
  double prefill_tokens = 0, decode_tokens = 0, recompute_tokens = 0;
  double sequences = 0, running = 0, waiting = 0;
  double bytes = 0, flops = 0;  // bytes: of weights, KV and activations
  std::optional<double> kv_held_share, kv_cached_share;
  nlohmann::json phases_us;  // an object of numbers

  double end_s() const { return begin_s + length_s; }
  // In the model, without planning and sampling: where bytes and operations go.
  double forward_s() const;
};
// In order of time; lines without a time are left out.
std::vector<RunStep> run_steps(const Run& run);

}  // namespace tally::measure
