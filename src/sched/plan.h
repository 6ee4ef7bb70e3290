#pragma once
// Same inputs, same plan, byte for byte: queue + ledger + budgets -> StepPlan. No clock (ticks are passed
// in), no I/O, no threads, no tensors. Owns the sequences' token ids (prompt and generated); the engine reads
// them to fill a batch. Source: the scheduler reference of this project (states, admission, preemption,
// step): docs/scheduler.md.
//
// Sequence states: waiting -> prefilling -> decoding -> ended; prefilling, decoding -> preempted (waits) ->
// prefilling. One step: plan() applies cancels and deadlines, admits, assigns rows; the engine computes;
// commit() appends.

#include "base/ids.h"
#include "kv/ledger.h"
#include "sched/config.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace tally::sched {

// One prompt and the sequences generated from it: choice c is the sequence seq + c.
struct Request {
  SeqId seq{};
  uint32_t choices = 1;         // n or best_of: forked from one prefill
  bool beams = false;           // the choices step together, and each outcome may fork from another choice
  int32_t priority = 0;         // lower goes first
  uint64_t tenant = 0;          // waiting tenants take turns by the rows they were given
  std::vector<TokenId> prompt;  // at least one token
  uint32_t score_from = 0;      // prompt tokens from this position on are scored; 0: none
  bool prompt_only = false;     // nothing is generated: ends with its last prompt row; one choice
  uint32_t max_tokens = 0;      // 0: until the context or what the pool holds, or prompt_only
  kv::Namespace prefix_namespace{};  // sequences share blocks only inside one
  Tick arrival = 0;
  Tick deadline = 0;  // 0: none
  bool held = false;  // until release()
};

// Why a request was not taken at the door. kNone: it is in the queue.
enum class Refusal : uint8_t { kNone, kQueueFull, kPromptTooLong, kPoolTooSmall, kTooManyChoices };
struct Admission {
  Refusal refusal = Refusal::kNone;
  uint32_t max_tokens = 0;  // the limit that holds for it
  // kPromptTooLong: tokens; kPoolTooSmall: blocks; kQueueFull: requests or tokens; kTooManyChoices: choices,
  // sequences running at once.
  uint64_t needed = 0, available = 0;
};

enum class EndReason : uint8_t { kStop, kLength, kCancelled, kDeadline, kFailed, kShutdown };

// Rows of one sequence in one step: positions [position, position + rows).
struct PlannedRows {
  SeqId seq{};
  uint32_t position = 0, rows = 0;
  uint32_t recomputed = 0;    // of them computed before a preemption
  bool decode = false;        // of a decoding sequence: the row of its last token, then those of drafts
  bool wants_logits = false;  // its last row's logits give a token; with drafts: the first of these do
  uint32_t logits = 0;        // of its last rows so many have logits
  uint32_t scores = 0;  // ... the first of which score the prompt tokens behind them: each once, in order
  uint32_t scored_position() const { return position + rows - logits + 1; }  // of the first
  uint32_t drafts = 0;        // of its last rows: tokens that were offered and are not known to be right
  // ... and as many for sequences that begin with this row: plan.begins[begins_at ...].
  uint32_t begins_at = 0, begins = 0;
  uint32_t outcomes() const { return wants_logits ? 1 + begins : 0; }  // and one for each accepted draft
};

// A block whose rows are copied before the step's rows are computed. In order: a later copy may read or write
// what an earlier one wrote.
struct BlockCopy {
  BlockId from{}, to{};
};

struct Ended {
  SeqId seq{};
  EndReason reason = EndReason::kStop;
};

// A sequence that waits already may appear too: it gave up more of what it still held.
struct Preempted {
  SeqId seq{}, by{};
  uint32_t blocks = 0, tokens = 0;
};

struct StepPlan {
  std::vector<PlannedRows> rows;  // decodes first, then prefills; empty: nothing to compute
  std::vector<Ended> ended;       // by cancel or deadline, before this step's rows
  std::vector<Preempted> preempted;
  std::vector<SeqId> admitted;    // scheduled for the first time: queue time ends here
  std::vector<SeqId> begins;      // choices forked from another's last prompt row
  std::vector<BlockCopy> copies;  // first writes into shared blocks, hits inside a block
  double predicted = 0;           // ticks, by the cost that was set
};

// What the rows of a plan cost.
double step_cost(const StepCost& cost, const StepPlan& plan);

// The result of one row group with wants_logits: of its sequence, then of those that begin with it. With
// drafts: one for each that was accepted, which is its token, and one for the token behind them.
struct Outcome {
  TokenId token{};
  bool stop = false;    // an end token: counted and kept in tokens(), no text; the sequence ends with kStop
  bool failed = false;  // its own work failed (non-finite logits): the sequence ends with kFailed
  // Of beams behind their first token: the beam whose tokens this one continues, if not its own. Who is
  // continued by others continues itself.
  std::optional<SeqId> from{};
  // Of a group with drafts, in its first outcome: so many were accepted, and as many outcomes follow. Only the
  // last may be a stop.
  uint32_t accepted = 0;
};

enum class SeqState : uint8_t { kWaiting, kPrefilling, kDecoding, kPreempted, kEnded };

// After the end: as they were just before the blocks went back.
struct SequenceStats {
  uint32_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0;
  uint32_t preemptions = 0, recomputed_tokens = 0;
  uint32_t blocks = 0, blocks_shared = 0, blocks_peak = 0;
};

struct QueueStats {
  uint32_t running = 0, waiting = 0, deferred = 0;  // waiting: with preempted and deferred ones
  uint64_t waiting_tokens = 0;                      // prompt tokens of those never scheduled
  Tick oldest_arrival = 0;                          // 0: queue empty
  uint64_t preemptions = 0, preempted_tokens = 0, recomputed_tokens = 0;
  uint64_t prefix_queries_tokens = 0, prefix_hits_tokens = 0;
  uint64_t forks = 0, copied_blocks = 0;  // sequences begun by another's prompt; blocks copied
  uint64_t cached_recomputed_tokens = 0;  // found in the index, computed all the same for the last's logits
};

class Scheduler {
 public:
  // `ledger` outlives this and is driven by it alone.
  Scheduler(const Config& config, kv::Ledger& ledger);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Puts a request into the queue, or says why not. Requires: seq is new.
  Admission submit(Request request);
  // Takes effect at the next plan. Unknown or ended ids are ignored; one of several beams ends them all.
  void cancel(SeqId seq, EndReason reason);

  void release(SeqId seq);      // a held request may run from now on
  bool waits(SeqId seq) const;  // false: unknown, ended, or has run
  // Blocks from elsewhere for a waiting prompt, between commit and plan: behind the full ones that the index has,
  // at most `most`, fewer where who runs needs them. The caller fills them, and the first `good` are indexed.
  uint32_t matched_blocks(SeqId seq);
  std::span<const BlockId> adopt(SeqId seq, uint32_t most, Tick now);
  void adopted(uint32_t good, Tick now);

  // What steps cost from now on. Without it all steps cost nothing.
  void set_cost(const StepCost& cost);

  // So many tokens are guessed to follow those of a decoding sequence: the next plan may compute the first of
  // them too. It takes rows, logits and free blocks that nobody else wants in that step, and preempts and
  // evicts for none. Ignored: what waits or prefills, beams, whatever is unknown.
  void offer(SeqId seq, uint32_t drafts);

  // Decides a step. The plan stays valid until the next call. Requires: the previous plan was committed.
  const StepPlan& plan(Tick now);
  // Reports the step: the outcomes of each entry of plan.rows, in order. Appends tokens, registers full
  // blocks, gives back those of drafts that were wrong, forks, ends sequences. Returns those that ended, in
  // order (kStop, kLength, kFailed).
  std::span<const Ended> commit(std::span<const Outcome> outcomes, Tick now);
  // Between plan and commit: a row of this sequence failed (a non-finite value) though none of its logits
  // were asked for. It ends with kFailed at commit, and nothing of its rows is registered.
  void fail(SeqId seq);
  // After plan: the step was not computed (the engine failed): all its sequences end with kFailed.
  std::span<const Ended> abandon(Tick now);

  // Prompt, then generated ids. Valid until the sequence's end record was returned and the next plan() began.
  std::span<const TokenId> tokens(SeqId seq) const;
  std::span<const BlockId> table(SeqId seq) const;
  SequenceStats stats(SeqId seq) const;
  SeqState state(SeqId seq) const;

  QueueStats queue_stats() const;
  bool idle() const;  // nothing waiting, nothing running
  std::span<const uint64_t> branches() const;  // times each was taken, by Branch (sched/core.h); for tests

  void check() const;  // recounts every invariant (S*, and the ledger's L*): CHECKs
 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tally::sched
