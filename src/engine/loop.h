#pragma once
// The engine's loop: plan, pack, forward, pick, commit. (Private to the room.)

#include "base/accounts.h"
#include "base/pool.h"
#include "engine/beams.h"
#include "engine/cost.h"
#include "engine/disk/promoter.h"
#include "engine/drafts/drafter.h"
#include "engine/engine.h"
#include "engine/step_account.h"
#include "engine/step_work.h"
#include "kv/view.h"
#include "model/model.h"
#include "sched/plan.h"

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace tally::engine {

// Everything an engine is made of; made by memory.cc after the plan.
struct Parts {
  std::unique_ptr<base::ThreadPool> pool;
  std::unique_ptr<model::Model> model;
  kv::PoolShape shape;
  base::Arena kv_memory;
  model::Scratch scratch;
  sched::Config sched;
  sched::StepCost cost;
  kv::LedgerConfig ledger;
  std::vector<TokenId> end_ids, suppressed_ids;  // ascending
  Info info;
  bool cascade = true;            // model::Batch
  std::unique_ptr<DiskTier> disk;  // null: what leaves the pool is lost
  double disk_bytes_per_s = 0;     // of the plan, where weights are streamed; 0: not known
  base::Arena draft_memory, draft_chances;
  std::unique_ptr<Drafter> drafter;  // null: no drafts
  bool rejection_sampling = false;   // Policy
  base::Accounts* accounts = nullptr;
};

class Loop final : public Engine {
 public:
  explicit Loop(Parts parts);
  ~Loop() override;

  Submitted submit(Request request) override;
  base::Result<void> run() override;
  void stop(int64_t deadline_us) override;
  Stats stats() const override;
  const Info& info() const override { return parts_.info; }
  uint64_t reset_prefix_cache() override;
  KvEvents kv_events(uint64_t since, size_t max) const override;
  BlockMap block_map() const override;
  StepPage steps(uint64_t since, size_t max) const override { return log_.read(since, max); }

  // One step if there is work; false: nothing to do. For run() and for tests that drive the engine by hand.
  bool step();
  const Drafter* drafter() const { return parts_.drafter.get(); }  // for benches; null: no drafts

 private:
  // A sequence from submit to its end record: a choice of a request, or one of its beams.
  struct Sequence {
    std::shared_ptr<TokenStream> stream;  // null: a beam
    std::shared_ptr<BeamFamily> beams;
    std::shared_ptr<PromptScores> scores;  // null: the prompt is not scored
    bool prompt_only = false;
    std::shared_ptr<const sample::Params> params;
    std::shared_ptr<const sample::Constraint> constraint;  // null: unconstrained
    std::unique_ptr<sample::ConstraintMatcher> matcher;    // while it runs, from its first token on
    bool dead_end = false;                                 // the constraint leaves nothing
    bool matcher_full = false;                             // or cannot be followed further
    uint32_t choice = 0;
    int32_t seat = Drafter::kNoSeat;
    bool looks_ahead = true;  // for what its constraint forces: no longer once that took too much
    Receipt receipt;
    int64_t mark_us = 0;                            // time up to here is accounted
    int64_t previous_token_us = 0;                  // commit of the token before the last
    StreamShare followed;                           // what the constraint keeps of its tokens
  };
  // Instants between the phases of a step.
  struct Marks {
    int64_t begin_us = 0, drafted_us = 0, planned_us = 0, packed_us = 0, computed_us = 0, sampled_us = 0;
  };
  // A planned row group of this step, with what the unlocked phases need.
  struct Group {
    SeqId seq{};
    Sequence* sequence = nullptr;
    std::span<const TokenId> tokens, drafts;
    uint32_t prompt_tokens = 0, rows = 0, row_begin = 0, position = 0;
    int32_t logits = -1;                       // index of its last row among those with logits, or -1
    uint32_t scores = 0, scored_position = 0;  // prompt tokens scored in this step, from there on
    bool decode = false, failed = false;
    bool ends_prompt_only = false;  // with the last row of a sequence that generates nothing
  };
  // A row that scores the prompt token behind it.
  struct ScoredRow {
    uint32_t group = 0, logits = 0, position = 0;
    bool finite = true;
  };
  // A sequence that takes its next token from a row: the group's, or one that begins with it.
  struct Draw {
    SeqId seq{};
    Sequence* sequence = nullptr;
    uint32_t group = 0;
    bool begins = false;
    bool shares_row = false;  // others draw from the same logits
    bool dead_end = false, matcher_full = false;  // as of a sequence
    uint32_t pick = 0;                            // its first in picks_, of 1 + drafts of the group
    uint32_t tokens = 1;                          // picks that hold: accepted drafts, and the one behind them
    size_t outcome = 0;                           // its first in outcomes_
  };

  void promote();
  void keep_prefixes();
  void take_mail();
  bool wait_for_work();
  void nap();
  const sched::StepPlan& plan(int64_t now_us);
  void pack(const sched::StepPlan& plan, int64_t now_us);
  void pack_rows(const sched::PlannedRows& rows, Group& group);
  void copy_blocks();
  void forward();
  // draws.cc
  void follow_constraint(Draw& draw);
  void pick();
  void draw(size_t index, size_t worker);
  void score_row(ScoredRow& row, size_t worker);
  void draw_beam(Draw& draw, std::span<float> logits, size_t worker);
  sample::Pick draw_row(const Draw& draw, uint32_t row, size_t worker);
  sample::Context context_of(const Draw& draw, uint32_t row) const;
  std::span<float> logits_of(const Draw& draw, uint32_t row, size_t worker);
  void advance_beams();
  // speculate.cc
  void draft();
  bool accepts_by_chance(const Sequence& sequence) const;
  void offer_drafts();
  void settle_drafts(const Marks& at, bool decodes_only, int64_t now_us);
  void seat_sequences();
  void take_tokens(int64_t now_us);
  void take_scores(int64_t now_us);
  void begin_choice(const Draw& draw);
  void commit(const Marks& marks);
  void log_step(const Marks& marks);
  void account_rows(const Group& group, int64_t begin_us, int64_t sampled_us, int64_t end_us);
  Submitted add_sequences(Request request, const sched::Admission& admission, SeqId first,
                          uint32_t prompt_tokens);
  uint64_t answer_bytes(const Request& request, const sched::Request& wanted) const;
  void note_scheduled(Sequence& sequence, int64_t now_us);
  void end_beam(BeamFamily& beams, Finish finish, const Receipt& receipt, int64_t now_us);
  void end(SeqId seq, sched::EndReason reason, int64_t now_us);
  void end_all(Finish why);
  bool is_past_stop() const;
  void count_blocks(Stats& totals) const;
  void publish(int64_t now_us);

  Parts parts_;
  const kv::View view_;
  std::shared_ptr<Mailbox> mailbox_;
  const std::shared_ptr<StreamRoom> room_;

  // Guarded by mailbox_->mutex.
  kv::Ledger ledger_;
  sched::Scheduler scheduler_;
  std::unordered_map<SeqId, std::unique_ptr<Sequence>> sequences_;
  uint64_t next_seq_ = 1;
  bool stopping_ = false, failed_ = false;
  int64_t stop_deadline_us_ = 0;
  double rows_per_second_ = 0;  // recent, for Retry-After
  std::unique_ptr<Promoter> promoter_;  // null: no disk

  // Engine thread only.
  StepAccount account_;
  StepWork work_;
  StepRecord record_;  // of this step
  CostFollower cost_;
  std::optional<base::Error> fault_;  // streamed weights: no step can be computed any more
  std::vector<Group> groups_;
  std::vector<Draw> draws_;
  std::vector<uint32_t> constrained_;  // of the draws
  std::vector<ScoredRow> scored_;
  std::vector<sched::BlockCopy> copies_;
  std::vector<TokenId> tokens_;
  std::vector<model::Segment> segments_;
  std::vector<uint32_t> tables_, logits_rows_;
  std::vector<sample::Pick> picks_;             // Draw::pick
  std::vector<std::vector<float>> row_copies_;  // one a worker: a row of logits that several draw from
  std::vector<sched::Outcome> outcomes_;
  std::vector<std::shared_ptr<TokenStream>> to_notify_;
  std::vector<sample::Scratch> sample_scratch_;  // one a worker

  StepLog log_;  // read by any thread

  mutable std::mutex stats_mutex_;
  StepAccount published_;  // guarded by stats_mutex_
};

}  // namespace tally::engine
