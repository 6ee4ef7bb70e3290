// Where the wall time of steps went, and how far they are from the roofs of the machine.
#pragma once

#include "measure/roof.h"
#include "measure/step_kind.h"
#include "measure/summary.h"

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::measure {

// To what a piece of wall time is put down. kForward: of a pass, where no roof is known to divide it by.
enum class Bound : uint8_t { kBandwidth, kCompute, kForward, kSampling, kScheduling, kOverhead, kIdle };
inline constexpr std::string_view kBoundNames[] = {"bandwidth",  "compute",  "forward", "sampling",
                                                   "scheduling", "overhead", "idle"};
inline constexpr size_t kBounds = std::size(kBoundNames);

// The roofs as they hold for one server. 0: not known.
struct RoofsInUse {
  double bytes_per_s = 0;    // read, by its threads
  double ops_per_s = 0;      // of the instruction that its weights take
  RatesByRows kernels = {};  // of the kernels of its weights, by rows at once; empty: not known

  // Operations a second of a pass with so many rows: that of the kernels where it is known.
  double ops_with_rows(uint64_t rows) const;
};

// Seconds by Bound.
class BoundTimes {
 public:
  double& operator[](Bound bound) { return seconds_[static_cast<size_t>(bound)]; }
  double operator[](Bound bound) const { return seconds_[static_cast<size_t>(bound)]; }
  void add(const BoundTimes& other);
  double sum() const;
  Bound largest() const;

 private:
  std::array<double, kBounds> seconds_{};
};

// What the roofs ask for a step, and where its wall time went.
struct StepTime {
  uint64_t step = 0;
  StepKind kind{};
  double wall_s = 0, forward_s = 0;
  double bandwidth_s = 0, operations_s = 0;  // for all its bytes, for all its operations
  BoundTimes by_bound;                       // sums to wall_s

  double least_s() const { return bandwidth_s > operations_s ? bandwidth_s : operations_s; }
  double efficiency() const { return forward_s > 0 ? least_s() / forward_s : 0; }
};

// Steps of one kind, summed up.
struct StepGroup {
  uint64_t steps = 0, prefill_tokens = 0, decode_tokens = 0, recompute_tokens = 0, sequences = 0;
  uint64_t draft_tokens = 0, accepted_tokens = 0;  // verified, and of them right
  struct Drafts {
    uint64_t draft_tokens = 0, accepted_tokens = 0;
  };
  std::map<std::string, Drafts> drafts;  // the same, by who drafted; of those who did
  double wall_s = 0, forward_s = 0, bandwidth_s = 0, operations_s = 0;
  double least_s = 0;  // of each step the larger of the two
  double weight_bytes = 0, kv_bytes = 0, activation_bytes = 0, flops = 0;
  BoundTimes by_bound;
  std::map<std::string, double> phases_s;
  double median_s = 0;  // of a step's wall time
  // Of the steps for which the server said beforehand what they would take: that, and what they took.
  double predicted_s = 0, predicted_wall_s = 0;
  uint64_t predicted_steps = 0;

  double bytes() const { return weight_bytes + kv_bytes + activation_bytes; }
  uint64_t tokens() const {  // that went through the model
    return prefill_tokens + decode_tokens + recompute_tokens + draft_tokens;
  }
  // Share of the forward time that the roofs ask for; 0 without roofs.
  double efficiency() const { return forward_s > 0 ? least_s / forward_s : 0; }
  bool is_bandwidth_bound() const { return bandwidth_s >= operations_s; }
  double phase_s(const char* name) const;
};

// Decode steps of one number of rows.
struct BatchSpeed {
  uint64_t steps = 0;
  double wall_s = 0;
};

struct StepsAccount {
  double wall_s = 0;    // steps and the time between them; where the log had lost steps, without that
  BoundTimes by_bound;  // sums to wall_s
  double bandwidth_overhead_s = 0,
         compute_overhead_s = 0;  // kOverhead of steps that memory, operations bound
  std::array<StepGroup, kStepKinds> groups;
  std::map<uint64_t, BatchSpeed> decode_batches;  // by rows
  uint64_t missing = 0;                           // steps that the log had lost
  uint64_t steps_waiting = 0;                     // at whose end somebody waited
  uint64_t running_max = 0;
  double kv_held_max = 0;  // share of the blocks
  std::vector<StepTime> steps;

  const StepGroup& of(StepKind kind) const { return groups[static_cast<size_t>(kind)]; }
  uint64_t tokens() const;
};

// `steps`: objects of /v1/steps, untrusted: what is none is left out. `window`: seconds on the clock of t_us,
// in which the engine was watched; what of it no step covers is idle. Absent: from the first step to the
// last.
StepsAccount account_steps(std::span<const nlohmann::json> steps, const RoofsInUse& roofs,
                           const std::optional<Window>& window = std::nullopt);

}  // namespace tally::measure
