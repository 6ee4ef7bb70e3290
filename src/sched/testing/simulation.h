#pragma once
// One random life of a scheduler: configuration and events follow from the seed alone. Test support, not in
// the product.

#include "sched/testing/rig.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace tally::sched::testing {

// Numbers from a seed, without state shared between runs.
class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(mix(seed)) {}
  uint64_t next() { return mix(state_++); }
  uint64_t below(uint64_t n) { return next() % n; }
  uint64_t between(uint64_t low, uint64_t high) { return low + below(high - low + 1); }
  bool one_in(uint64_t n) { return n != 0 && below(n) == 0; }
  bool percent(uint64_t p) { return below(100) < p; }
  // Between low and high, small ones more often.
  uint64_t skewed(uint64_t low, uint64_t high) { return low + below(between(1, high - low + 1)); }

 private:
  uint64_t state_;
};

enum class Event : uint8_t {
  kSubmit,
  kShared,
  kContinued,
  kRefused,
  kCancelWaiting,
  kCancelPrefilling,
  kCancelDecoding,
  kCancelPreempted,
  kDeadlineInQueue,
  kDeadlineRunning,
  kRowFails,
  kAllRowsFail,
  kStepFails,
  kReset,
  kResetInFlight,
  kTickJump,
  kAllRunningLeave,
  kChoices,
  kBeams,
  kScored,
  kPromptOnly,
};
inline constexpr size_t kEventCount = static_cast<size_t>(Event::kPromptOnly) + 1;

struct SimulationCounts {
  uint64_t steps = 0, rows = 0, hash_cut_runs = 0, hash_mismatches = 0;
  std::array<uint64_t, kEventCount> events{};
  std::array<uint64_t, 64> branches{};
  std::array<uint64_t, kv::kMoveCount> moves{};

  void add(const SimulationCounts& other);
};

struct SimulationResult {
  std::string error;  // empty: every promise was kept
  uint64_t log_hash = 0;
  SimulationCounts counts;
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed);
  // Runs until the seed's length is used up and all have ended, with a recount after every step on small
  // pools.
  SimulationResult run();

 private:
  void roll_config();
  void starve();
  void crawl();
  void roll_drafting();
  void step();
  void submit(bool giant);  // giant: a prompt of more than half the pool, first in line
  std::vector<TokenId> roll_prompt(const kv::Namespace& space, uint64_t tokens);
  void roll_scores(Request& request);
  void cancel_some();
  StepFaults roll_faults();
  void recount();
  void check_rest();
  void count(Event event) { ++counts_.events[static_cast<size_t>(event)]; }

  uint64_t seed_;
  Dice dice_;
  Config config_;
  kv::LedgerConfig ledger_config_;
  uint64_t length_ = 0;  // steps with events
  uint64_t arrivals_percent_ = 0, burst_ = 0, prompt_max_ = 0, new_max_ = 0, overlap_percent_ = 0,
           spaces_ = 0;
  uint64_t cancel_one_in_ = 0, fault_one_in_ = 0, reset_one_in_ = 0, leave_one_in_ = 0, deadline_percent_ = 0,
           late_percent_ = 10, giant_percent_ = 0, choices_percent_ = 0, priority_percent_ = 0,
           scored_percent_ = 0;
  uint32_t eos_period_ = 0;
  Drafting drafting_;
  Tick step_ticks_ = 1000, now_ = 1'000'000;
  std::unique_ptr<Rig> rig_;
  SimulationCounts counts_;
};

}  // namespace tally::sched::testing
