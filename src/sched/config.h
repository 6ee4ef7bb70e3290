#pragma once
// What a scheduler is told once: its limits, the baselines it can be, and what steps cost. Part of the door,
// sched/plan.h.

#include "base/ids.h"

#include <cstdint>

namespace tally::sched {

// kStatic, a baseline: seats are filled when all are empty, and stay empty until the last has ended.
enum class Batching : uint8_t { kContinuous, kStatic };
// kReserve, a baseline: at admission a sequence takes the blocks of its longest length; nothing is shared.
enum class Allocator : uint8_t { kPaged, kReserve };

// What a step costs, in ticks: fixed + the larger of the weight stream and `rows` rows of arithmetic + the
// cache read + the logits rows. Measured by the engine, passed in as values; only step_latency uses it.
struct StepCost {
  double fixed = 0;
  double weights = 0;     // one pass over the weights, with one row
  double row = 0;         // of each row beyond those that ride on the weight stream
  double kv_decode = 0;   // of a decode row, for each position it attends to
  double kv_prefill = 0;  // of a prompt row, for each position it attends to
  double logits = 0;      // of a row with logits
};

struct Config {
  uint32_t seqs_max = 64;         // sequences running at once
  uint32_t queue_max = 256;       // sequences waiting
  uint64_t queue_tokens_max = 0;  // prompt tokens waiting; 0: 8 * model_len_max
  uint32_t step_tokens = 512;     // rows in one forward
  uint32_t model_len_max = 0;     // tokens per sequence, prompt included
  Batching batching = Batching::kContinuous;
  Allocator allocator = Allocator::kPaged;
  Tick step_latency =
      0;  // what a step with decode rows may take; 0: no bound, and plans do not depend on time
  uint32_t logits_rows_max = 0;  // rows with logits in a step, one at least for each that runs; 0: seqs_max
};

}  // namespace tally::sched
