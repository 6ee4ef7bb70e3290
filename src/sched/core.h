#pragma once
// What the scheduler knows, and the steps of a plan as functions on it. Private to the room.

#include "sched/plan.h"

#include <array>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace tally::sched {

// Branches of admission and preemption, counted so that the simulation can prove that each is taken.
enum class Branch : uint8_t {
  kAdmittedBeside,  // fits, with others running: the watermark holds
  kAdmittedAlone,   // nothing runs: no watermark
  kReturnedBeside,  // a preempted one returns while others run
  kReturnedAlone,
  kForced,             // nothing runs and the first does not fit: it takes what preempted ones still hold
  kForcedTake,         // ... and such a block was taken
  kDeferred,           // its next block is being computed by a running prefill
  kBlocked,            // does not fit now
  kPassed,             // a later one was admitted before a blocked one
  kDoorClosedByCount,  // the blocked one was passed often enough
  kDoorClosedByTime,   // ... or long enough
  kNoSeat,
  kNoAdmission,    // the step preempted
  kReturnHit,      // a returning one found blocks again in the prefix index
  kVictimWaiting,  // a preempted one gave up more blocks
  kVictimRunning,
  kVictimImmune,  // no other candidate: an immune one
  kImmuneSpared,
  kSharedSpared,   // all its blocks are shared: preempting it frees nothing
  kOwnVictim,      // the requester is the last in order: it stands still in this step
  kStandstill,     // no row at all: the oldest takes what it needs
  kPrefillShort,   // a chunk was cut because no block was left
  kChainRestored,  // a sequence registers its own blocks where another's entry it built on has gone
};
inline constexpr size_t kBranchCount = static_cast<size_t>(Branch::kChainRestored) + 1;

inline constexpr uint32_t kPassesMax = 8;         // later ones admitted before a blocked one,
inline constexpr Tick kPassTicksMax = 5'000'000;  // or for this long
inline constexpr uint32_t kImmuneTokens =
    16;  // tokens after a return during which others are preempted first

struct Sequence {
  SeqId id{};
  SeqState state = SeqState::kWaiting;
  kv::Namespace space{};
  Tick arrival = 0, deadline = 0;
  std::vector<TokenId> tokens;  // prompt, then generated; capacity for all of them from the start
  uint32_t prompt = 0, tokens_max = 0;
  uint32_t computed = 0;       // positions whose rows are committed
  uint32_t computed_peak = 0;  // ... before any preemption
  kv::BlockTable table;
  std::vector<kv::Handle> chain;  // entry that block i equals: the block itself or an earlier equal one
  uint64_t epoch = 0;             // of the ledger when the table began
  std::optional<EndReason> cancelled;
  bool scheduled = false;  // has had a row
  bool row_failed = false;
  uint32_t immune = 0;
  uint32_t passes = 0;  // later ones admitted while this one was blocked
  std::optional<Tick> blocked_since;
  SequenceStats stats;  // of what only grows; the rest is derived

  uint32_t known() const { return static_cast<uint32_t>(tokens.size()); }
  uint32_t remaining() const { return known() - computed; }
  bool before(const Sequence& other) const {
    return arrival != other.arrival ? arrival < other.arrival : raw(id) < raw(other.id);
  }
};

struct Core {
  Core(const Config& config_in, kv::Ledger& ledger_in);

  Config config;
  kv::Ledger& ledger;
  uint32_t block_tokens;
  uint32_t seats;      // min(seqs_max, step_tokens): every decoding sequence has a row in every step
  uint32_t watermark;  // blocks kept for growth when others run

  std::unordered_map<SeqId, std::unique_ptr<Sequence>> sequences;  // found by id, never iterated
  std::vector<Sequence*> waiting, running;  // by (arrival, id); waiting holds the preempted ones too
  std::vector<Sequence*> gone;              // ended; kept until the next plan
  uint32_t never_scheduled = 0;             // of waiting: not preempted
  uint64_t waiting_tokens = 0;              // their prompts
  bool left_waiting = false;                // the last plan could not take everyone

  StepPlan plan;
  std::vector<Sequence*> planned;  // the sequence of each entry of plan.rows
  std::vector<Sequence*> order;    // scratch of the prefill shares
  std::vector<kv::Handle> path;    // scratch of the prefix match
  std::vector<Ended> ended;        // of commit and abandon
  bool in_flight = false;
  QueueStats totals;
  std::array<uint64_t, kBranchCount> branches{};

  Sequence& find(SeqId seq) const;
  void count(Branch branch) { ++branches[static_cast<size_t>(branch)]; }
  uint32_t blocks_for(uint64_t tokens) const {
    return static_cast<uint32_t>((tokens + block_tokens - 1) / block_tokens);
  }
};

// door.cc: queue bounds and what never fits.
Admission admit_to_queue(Core& core, Request request);

// admission.cc: from waiting to running.
void admit_waiting(Core& core, Tick now);
// Registers the full committed blocks of a sequence, and again those whose entry has gone.
void extend_chain(Core& core, Sequence& seq);

// preemption.cc: blocks for growth.
// Gives the sequence one more block, from the pool or from a later one. False: it stands still in this step.
bool grow(Core& core, Sequence& seq, Tick now);
// Makes one block available for the oldest, whatever it takes. Requires: nothing has rows in this step.
void clear_standstill(Core& core, Sequence& oldest, Tick now);
// Drops blocks from the tail until `target` are available; a running sequence leaves to wait.
void preempt(Core& core, Sequence& victim, const Sequence& by, uint32_t target, Tick now);

// rows.cc: who computes what in this step.
void plan_decodes(Core& core, Tick now);
void plan_prefills(Core& core, Tick now);
// Plans the oldest alone when nobody else can move.
void plan_standstill(Core& core, Tick now);

// lifecycle.cc: lists and ends.
void insert_ordered(std::vector<Sequence*>& list, Sequence& seq);
void remove_ordered(std::vector<Sequence*>& list, const Sequence& seq);
void end_sequence(Core& core, Sequence& seq, EndReason reason, std::vector<Ended>& into, Tick now);
void forget_ended(Core& core);
void apply_cancels_and_deadlines(Core& core, Tick now);
void commit_step(Core& core, std::span<const Outcome> outcomes, Tick now);
void abandon_step(Core& core, Tick now);

// check.cc
void check_core(const Core& core);

}  // namespace tally::sched
