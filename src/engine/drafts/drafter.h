#pragma once
// The drafts of a step: who has a seat, what is proposed for whom, how much of it is worth its rows, and what
// became of it. What the loop sees of speculation. Threads: the engine's.

#include "base/accounts.h"
#include "base/ids.h"
#include "engine/drafts/choose.h"
#include "engine/drafts/proposer.h"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace tally::engine {

struct DraftLimits {
  uint32_t seats = 0;
  uint32_t drafts_max = kDraftsMax;
  uint64_t vocab = 0;  // a proposer may be wrong about anything: what is no token ends a draft
  std::span<float> chances = {};  // [RowPrices::kRowsMax, vocab], of drafts that are drawn; empty: none are
};

class Drafter {
 public:
  // Requires: drafts_max of at most kDraftsMax.
  // Of the proposers the first that has something to say is heard.
  Drafter(const DraftLimits& limits, std::vector<std::unique_ptr<Proposer>> proposers, const RowPrices& prices);

  static constexpr int32_t kNoSeat = -1;
  // For a sequence that generates, with its tokens; kNoSeat: all are taken, and it goes without drafts.
  int32_t take_seat(SeqId seq, std::span<const TokenId> known);
  void leave_seat(int32_t seat);
  // Tokens of a seat were committed.
  void committed(int32_t seat, std::span<const TokenId> known);

  // Sequences with a seat, by seat.
  struct Taken {
    int32_t seat = kNoSeat;
    SeqId seq{};
  };
  std::span<const Taken> taken() const { return taken_; }

  // A step: propose() for each that decodes, then choose() once, which takes its time where a proposer does;
  // drafts() is what is to be verified, and verified() tells what became of it. What is known stays where it is
  // from propose() to choose().
  void begin_step();
  // `forced`: what a constraint lets come next and nothing else, which needs no proposer.
  // With a chooser's parameters, who can draws its guesses as that does.
  void propose(int32_t seat, std::span<const TokenId> known, std::span<const TokenId> forced = {},
               const Chooser& chooser = {});
  void choose(uint32_t decoding);
  uint32_t prompt_rows() const;  // that proposers took in this step
  double us_per_draft() const;   // of the proposer that takes longest
  std::span<const TokenId> drafts(int32_t seat) const;
  // Of one of them: what it was drawn with, [vocab]; empty: it was not drawn.
  std::span<const float> chances(int32_t seat, uint32_t draft) const;
  DraftSource source(int32_t seat) const { return seats_[static_cast<size_t>(seat)].source; }
  // Of a seat's drafts `proposed` had rows, of which the first `accepted` were right.
  void verified(int32_t seat, uint32_t proposed, uint32_t accepted);

  // A step of decode rows and drafts alone took so long, and gave so many tokens to so many sequences.
  struct Step {
    uint32_t sequences = 0, rows = 0, tokens = 0;
    double taken_us = 0, drafting_us = 0;  // without making the drafts; that alone
  };
  void observe(const Step& step);
  // Tokens a second of recent steps over those without drafts, by the prices. 1: nothing drafted.
  double ratio() const { return plain_us_ > 0 ? plain_us_ / taken_us_ : 1; }
  uint32_t paused() const;  // sequences with a seat whose proposer is not worth a try for now
  const RowPrices& prices() const { return prices_; }

 private:
  struct Seat {
    bool is_taken = false;
    uint32_t known = 0, grade = 0, count = 0;
    std::span<const TokenId> text;  // known tokens, for who is asked late
    Proposer* asked_late = nullptr;
    DraftSource source = DraftSource::kLookup;
    Chooser chooser;
    std::span<const float> chances;  // of its drafts; empty: they were not drawn
    std::array<TokenId, kDraftsMax> tokens{};
    std::vector<Acceptance> acceptance;  // by grade, one proposer after the other; the last: of what was forced
  };
  void find_draft(Seat& seat, uint32_t index, std::span<const TokenId> forced);
  uint32_t tokens_of(std::span<const TokenId> draft) const;
  std::vector<Seat> seats_;
  std::vector<Taken> taken_;
  DraftLimits limits_;
  std::vector<std::unique_ptr<Proposer>> proposers_;
  uint32_t grades_ = 0;  // of all proposers
  RowPrices prices_;
  std::vector<DraftCandidate> candidates_;  // of a step
  std::vector<int32_t> candidate_seats_;
  double plain_us_ = 0, taken_us_ = 0;  // recent, fading
};

}  // namespace tally::engine
