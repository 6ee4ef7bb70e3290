#pragma once
// Who gets which slots of the KV pool, and which rows a step computes: what the clock of a replay drives.

#include "sched/plan.h"
#include "sched/simulate/trace.h"

#include <memory>
#include <span>

namespace tally::sched::simulate {

// kPaged and kReserve are the scheduler that serves, over its ledger. The others are contiguous extents of
// one address space, each the first that fits: of the longest length a sequence may have, or of the power of
// two above its present one, copied to the next when full.
enum class Scheme : uint8_t { kPaged, kReserve, kMaxLength, kPowerOfTwo };

struct Scenario {
  Scheme scheme = Scheme::kPaged;
  Batching batching = Batching::kContinuous;
  uint32_t block_tokens = 64;
  uint32_t pool_tokens = 32768;  // slots, the same bytes for every scheme
  uint32_t seqs_max = 64;
  uint32_t step_tokens = 512;
  uint32_t model_len_max = 2048;
  bool prefix_cache = true;
  Tick step_latency = 0;  // of kPaged and kReserve
  StepCost cost;
};

// Where the slots of the pool are when the rows of a step have been stored.
struct SlotUse {
  uint64_t stored = 0;     // hold a token's keys and values; what several sequences share counts once
  uint64_t allocated = 0;  // given to sequences: stored, reserved, and internal waste
  uint64_t reserved = 0;   // not filled yet, and will be
  uint64_t external = 0;   // free, but in pieces too short for someone who was turned away in this step
  uint32_t running = 0;    // sequences
  uint64_t internal() const { return allocated - stored - reserved; }
};

struct PlannerCounts {
  uint64_t preemptions = 0, recomputed_tokens = 0;
  uint64_t copies = 0, copied_tokens = 0;  // of keys and values inside the pool
  uint64_t prefix_queries_tokens = 0, prefix_hits_tokens = 0;
};

class Planner {
 public:
  virtual ~Planner() = default;
  // Puts a request of the trace into the queue, as the sequences `first`, first + 1, ...: one for each
  // choice.
  virtual Refusal submit(size_t request, SeqId first) = 0;
  virtual const StepPlan& plan(Tick now) = 0;
  // Between plan and commit.
  virtual SlotUse slots() const = 0;
  virtual std::span<const Ended> commit(std::span<const Outcome> outcomes, Tick now) = 0;
  virtual PlannerCounts counts() const = 0;
  virtual bool idle() const = 0;
};

// `trace` outlives the planner. Requires: pool_tokens >= block_tokens; sizes of at least one.
std::unique_ptr<Planner> make_planner(const Trace& trace, const Scenario& scenario);

}  // namespace tally::sched::simulate
