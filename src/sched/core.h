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
  kPartialHit,     // rows of a block that goes on differently were copied
  kReturnHit,      // a returning one found blocks again in the prefix index
  kVictimWaiting,  // a preempted one gave up more blocks
  kVictimRunning,
  kVictimImmune,  // no other candidate: an immune one
  kImmuneSpared,
  kSharedSpared,    // all its blocks are shared: preempting it frees nothing
  kOwnVictim,       // the requester is the last in order: it stands still in this step
  kStandstill,      // no row at all: the oldest takes what it needs
  kPrefillShort,    // a chunk was cut because no block was left
  kChainRestored,   // a sequence registers its own blocks where another's entry it built on has gone
  kForked,          // a choice began with another's last prompt row
  kHeir,            // the choice that computed the prompt was cancelled: another goes on with its blocks
  kCopied,          // a block was copied for a first write
  kBeamMoved,       // a beam went on from another's tokens
  kScoresShort,     // a chunk was cut because all rows with logits were taken
  kBatchClosed,     // static batching: no one is admitted to a batch under way
  kPrefillBudget,   // a chunk was cut to keep the step within its time
  kPrefillSkipped,  // ... or left out, every second step
  kDrafted,         // a decoding sequence has rows of drafts
  kDraftBlock,      // ... and took a free block for them
  kDraftShort,      // fewer than were offered: no rows, no logits, or the sequence ends before
  kDraftNoBlock,    // ... or no free block
  kDraftAccepted,   // all of them
  kDraftRejected,   // not all
  kDraftReturned,   // a block that was taken for them went back
};
inline constexpr size_t kBranchCount = static_cast<size_t>(Branch::kDraftReturned) + 1;

// A block is copied for its first rows when they are at least one in so many.
inline constexpr uint32_t kPartialShare = 4;

inline constexpr uint32_t kPassesMax = 8;         // later ones admitted before a blocked one,
inline constexpr Tick kPassTicksMax = 5'000'000;  // or for this long
inline constexpr uint32_t kImmuneTokens =
    16;  // tokens after a return during which others are preempted first

// A waiting request moves ahead by one level of priority each so many ticks.
inline constexpr Tick kAgeTicks = 10'000'000;
inline constexpr uint32_t kLatencyRowsMin = 16;  // rows a prompt gets at least every second step

struct Sequence;

// Who shares the machine. Served grows with prompt rows at admission and with every generated row; one that
// was away begins level with the one that has least.
struct Tenant {
  uint64_t id = 0, served = 0;
  uint32_t live = 0;  // sequences that have not ended
};

// The choices of one request, and what its beams may still take.
struct Family {
  std::vector<Sequence*> members;  // that have not ended, by id
  bool beams = false;
  uint32_t reserve = 0;  // blocks its beams may still take
};

struct Sequence {
  SeqId id{};
  SeqState state = SeqState::kWaiting;
  kv::Namespace space{};
  Tick arrival = 0, deadline = 0;
  Tick rank = 0;  // order of waiting, running and being spared: arrival, moved by priority
  Tenant* tenant = nullptr;
  std::shared_ptr<Family> family;  // null: one choice
  std::vector<Sequence*> unborn;   // choices that begin with this one's last prompt row
  std::vector<TokenId> tokens;     // prompt, then generated; capacity for all of them from the start
  uint32_t prompt = 0, tokens_max = 0;
  uint32_t score_next = 0;     // position of the first prompt token not scored yet; prompt: none is left
  bool prompt_only = false;    // ends where others would generate
  uint32_t computed = 0;       // positions whose rows are committed
  uint32_t computed_peak = 0;  // ... before any preemption
  kv::BlockTable table;
  std::vector<kv::Handle> chain;  // entry that block i equals: the block itself or an earlier equal one
  uint64_t epoch = 0;             // of the ledger when the table began
  std::optional<EndReason> cancelled;
  bool held = false;       // not to be admitted yet
  bool scheduled = false;  // has had a row
  bool row_failed = false;
  uint32_t offered = 0;  // drafts, for the next plan
  uint32_t immune = 0;
  uint32_t passes = 0;  // later ones admitted while this one was blocked
  std::optional<Tick> blocked_since;
  SequenceStats stats;  // of what only grows; the rest is derived

  uint32_t known() const { return static_cast<uint32_t>(tokens.size()); }
  uint32_t remaining() const { return known() - computed; }
  bool has_scores_left() const { return score_next < prompt; }
  // Of the known tokens so many may be taken from the index: not the last, nor any whose row has yet to
  // score.
  uint32_t reusable() const { return has_scores_left() ? score_next - 1 : known() - 1; }
  bool before(const Sequence& other) const {
    return rank != other.rank ? rank < other.rank : raw(id) < raw(other.id);
  }
  // One of several beams that step together. They are never preempted: their blocks are reserved.
  bool is_beam() const { return family && family->beams && unborn.empty() && known() > prompt; }
};

// Blocks on their way into the index for a waiting sequence, and those before them.
struct Adoption {
  SeqId seq{};
  kv::BlockTable path, taken;
  uint64_t epoch = 0;  // of the ledger
};

struct Core {
  Core(const Config& config_in, kv::Ledger& ledger_in);

  Config config;
  StepCost cost;
  kv::Ledger& ledger;
  uint32_t block_tokens;
  uint32_t seats;      // min(seqs_max, step_tokens): every decoding sequence has a row in every step
  uint32_t watermark;  // blocks kept for growth when others run

  std::unordered_map<SeqId, std::unique_ptr<Sequence>> sequences;  // found by id, never iterated
  std::vector<Sequence*> waiting, running;       // by (arrival, id); waiting holds the preempted ones too
  std::vector<std::unique_ptr<Tenant>> tenants;  // with live sequences, by id
  std::vector<Sequence*> line;                   // scratch of admission
  std::vector<Sequence*> gone;                   // ended; kept until the next plan
  uint32_t seats_unborn = 0;                     // choices that running ones will fork
  uint32_t reserved = 0;                         // blocks that beams may still take
  uint32_t never_scheduled = 0;  // sequences of waiting, not preempted, with those they will fork
  uint64_t waiting_tokens = 0;   // their prompts
  bool left_waiting = false;     // the last plan could not take everyone

  StepPlan plan;
  std::vector<Sequence*> planned;  // the sequence of each entry of plan.rows
  std::vector<Sequence*> order;    // scratch of the prefill shares
  bool offers = false;             // some sequence has drafts on offer
  struct Result {
    Sequence* seq;
    const Outcome* outcome;
  };
  std::vector<Result> results;        // scratch of commit
  std::vector<size_t> outcome_at;     // ... the first outcome of each group of the plan
  std::vector<kv::Handle> path;       // scratch of the prefix match
  Adoption adoption;                  // empty but between adopt and adopted
  std::vector<Ended> ended;           // of commit and abandon
  std::vector<BlockCopy> copies_due;  // of forks that copy: for the next plan
  bool prefill_skipped = false;       // by the last step, to keep its time
  uint32_t logits_free = 0;           // rows with logits that scores may still take in this step
  bool in_flight = false;
  QueueStats totals;
  std::array<uint64_t, kBranchCount> branches{};

  Sequence& find(SeqId seq) const;
  void count(Branch branch) { ++branches[static_cast<size_t>(branch)]; }
  bool reserves() const { return config.allocator == Allocator::kReserve; }
  // Can anyone but beams take so many blocks?
  bool has(uint64_t blocks) const { return ledger.available() >= reserved + blocks; }
  uint32_t seats_taken() const { return static_cast<uint32_t>(running.size()) + seats_unborn; }
  uint32_t blocks_for(uint64_t tokens) const {
    return static_cast<uint32_t>((tokens + block_tokens - 1) / block_tokens);
  }
};

// door.cc: queue bounds and what never fits.
Admission admit_to_queue(Core& core, Request request);

// Finds or makes the tenant, for one more live sequence. leave_tenant is the reverse.
Tenant* join_tenant(Core& core, uint64_t id);
void leave_tenant(Core& core, Tenant* tenant);

// admission.cc: from waiting to running.
void admit_waiting(Core& core, Tick now);
// The entries that continue a waiting sequence's table, into core.path.
void match_prefix(Core& core, Sequence& seq);
kv::BlockKey block_key(const Core& core, const Sequence& seq, kv::Handle parent, uint32_t block);
// Blocks that running prefills were admitted with and have not taken yet.
uint64_t promised_blocks(const Core& core);
// Registers the full committed blocks of a sequence, and again those whose entry has gone.
void extend_chain(Core& core, Sequence& seq);

// adoption.cc: blocks that come from elsewhere.
void adopt_blocks(Core& core, Sequence& seq, uint32_t most, Tick now);
void index_adopted(Core& core, uint32_t good, Tick now);

// preemption.cc: blocks for growth.
// Gives the sequence one more block, from the pool or from a later one. False: it stands still in this step.
bool grow(Core& core, Sequence& seq, Tick now);
// Makes the last block its own before a row is written into it: a copy if others have it too. False: as
// above.
bool own_tail(Core& core, Sequence& seq, Tick now);
// Makes one block available for the oldest, whatever it takes. Requires: nothing has rows in this step.
void clear_standstill(Core& core, Sequence& oldest, Tick now);
// Drops blocks from the tail until `target` are available; a running sequence leaves to wait.
void preempt(Core& core, Sequence& victim, const Sequence& by, uint32_t target, Tick now);

// cost.cc: how many prompt rows a step may take beside its decode rows.
uint32_t prefill_rows_max(Core& core, uint32_t decode_rows);

// rows.cc: who computes what in this step.
void plan_decodes(Core& core, Tick now);
void plan_prefills(Core& core, Tick now);
// Plans the oldest alone when nobody else can move.
void plan_standstill(Core& core, Tick now);

// drafts.cc: rows for tokens that may turn out wrong.
// Adds drafts to the decode rows of the plan, from what the others left.
void plan_drafts(Core& core, Tick now);
// Finds the outcomes of each group of the plan, and gives back the blocks that were taken for drafts which
// were not accepted, last taken first, so that the free ones are in the order they had.
void settle_drafts(Core& core, std::span<const Outcome> outcomes, Tick now);

// fork.cc: the choices of one request.
// Begins the unborn choices of `root` with the blocks of its prompt.
void begin_choices(Core& core, Sequence& root);
// The first unborn choice takes over what `seq`, which is about to end, has computed, and its place in a
// list.
void hand_over(Core& core, Sequence& seq);
// Beams: `seq` drops what it has and goes on from `parent`'s blocks and tokens. Requires: the tokens of this
// step are not appended yet.
void continue_from(Core& core, Sequence& seq, const Sequence& parent, Tick now);
// Allocator::kReserve: blocks for the longest length, for the sequence and those it will fork.
uint32_t reservation_blocks(const Core& core);
void take_reservation(Core& core, Sequence& seq, Tick now);
// Gives up the last block of the table.
void drop_tail(Core& core, Sequence& seq, Tick now);
// What beams may take beyond their prompt: set aside while it runs, taken block by block, released.
uint32_t blocks_to_set_aside(const Core& core, const Sequence& root);
void set_aside(Core& core, Sequence& root);
void take_from_reserve(Core& core, Sequence& seq);
void release_aside(Core& core, Sequence& seq);

// lifecycle.cc: lists and ends.
void insert_ordered(std::vector<Sequence*>& list, Sequence& seq);
void remove_ordered(std::vector<Sequence*>& list, const Sequence& seq);
// Ends one sequence; who waits to be forked from it ends too, and so do the other beams of its request.
void end_sequence(Core& core, Sequence& seq, EndReason reason, std::vector<Ended>& into, Tick now);
void forget_ended(Core& core);
void apply_cancels_and_deadlines(Core& core, Tick now);
void commit_step(Core& core, std::span<const Outcome> outcomes, Tick now);
void abandon_step(Core& core, Tick now);

// check.cc
void check_core(const Core& core);

}  // namespace tally::sched
