#pragma once
// The beams of one request between the sampler's bookkeeping, which knows ranks, and the scheduler's
// sequences, which stay what they are while beams move between them. (Private to the room.)

#include "engine/stream.h"
#include "sample/beam.h"
#include "sched/plan.h"

#include <memory>
#include <span>
#include <vector>

namespace tally::engine {

class BeamFamily {
 public:
  // The sequences are first, first + 1, ..., one for each beam. `streams`: of the best, empty until the end.
  // Requires: bytes() fit into `room`.
  BeamFamily(const sample::BeamRules& rules, SeqId first, const std::vector<std::shared_ptr<Stream>>& streams,
             std::shared_ptr<StreamRoom> room);
  static uint64_t bytes(const sample::BeamRules& rules);

  // Room for what a sequence's row brings; what is set counts for this step. Different sequences from
  // different threads.
  sample::BeamRowRoom room(SeqId seq);
  void set_row(SeqId seq, const sample::BeamRow& row) { rows_[slot_of(seq)] = row; }

  // With every row set: what the sequences do, in their order, as outcomes. `first`: only the row of the
  // first sequence was computed, and all begin with it.
  void advance(bool first);
  const sched::Outcome& outcome(SeqId seq) const { return outcomes_[slot_of(seq)]; }

  std::span<const std::shared_ptr<TokenStream>> streams() const { return streams_; }
  // A row that is no number ends all, and so does a constraint that leaves none of them a way on nor an
  // answer. matcher_full: one of them could not be followed further.
  bool failed = false, dead_end = false, matcher_full = false;

  // One sequence has ended; true with the last. What the sequences used is summed, and told with the best
  // answer.
  bool leave(const Receipt& receipt);
  // Writes the best into the streams, each with its end. `reason`: kStop and kLength are found out anew.
  void finish(Finish reason, int64_t now_us);
  // How many tokens and finishes the streams were given, for the accounts.
  struct Answer {
    Finish finish = Finish::kStop;
    Receipt receipt;
  };
  std::span<const Answer> answers() const { return answers_; }

 private:
  size_t slot_of(SeqId seq) const { return static_cast<size_t>(raw(seq) - raw(sequences_.front())); }

  sample::BeamPool pool_;
  std::vector<SeqId> sequences_;
  size_t left_ = 0;  // sequences that have not ended
  Receipt receipt_;
  const size_t row_tokens_, top_;
  std::vector<sample::BeamToken> row_room_;     // [sequence][row_tokens_]
  std::vector<sample::TokenLogprob> best_room_;  // [sequence][top_]
  std::vector<sample::BeamRow> rows_, by_rank_;  // by sequence
  std::vector<uint32_t> slot_of_rank_, next_slots_;
  std::vector<sched::Outcome> outcomes_;
  std::vector<std::shared_ptr<TokenStream>> streams_;
  std::vector<Answer> answers_;
  StreamShare share_;
};

}  // namespace tally::engine
