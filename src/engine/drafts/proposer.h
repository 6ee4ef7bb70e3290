#pragma once
// Who guesses the next tokens of a sequence, and how its guesses fared. A guess that is wrong costs rows and
// changes nothing: every token is drawn from the model's own logits.
//
// Sequences that generate have a seat, a small number, for as long as they do. Threads: the engine's. No
// clock, no I/O. Source: the project's speculation reference, sections 2 and 4.

#include "base/ids.h"
#include "engine/stats.h"
#include "sample/params.h"

#include <algorithm>
#include <cstdint>
#include <span>

namespace tally::engine {

inline constexpr uint32_t kDraftsMax = 16;  // of one sequence in one step

// How the sequence of a seat draws its tokens, for guesses that are drawn as they are.
struct Chooser {
  const sample::Params* params = nullptr;  // null: guesses are what is likeliest
  uint32_t choice = 0, prompt_tokens = 0;
  std::span<const TokenId> end_ids, suppressed_ids;  // of the model, ascending
};

// What follows the known tokens of a seat, as many as there is room for?
struct Ask {
  uint32_t seat = 0;
  std::span<const TokenId> known;
  std::span<TokenId> into;
  Chooser chooser = {};
  std::span<float> chances =
      {};  // [into.size(), vocab]: with a chooser's parameters, those of each guess drawn
};

// The first `count` of the room that was given. Grade: how much the proposer trusts this guess, by a scale of
// its own; guesses of one grade have one history.
struct Proposal {
  uint32_t count = 0, grade = 0;
  bool is_drawn = false;  // with chances that were written down; false: what was guessed had all the chance
};

class Proposer {
 public:
  virtual ~Proposer() = default;
  // Requires: observe() was told of all known tokens.
  virtual Proposal propose(const Ask& ask) = 0;
  // The tokens of the seat are these now: with `begins` of a new sequence, else some were appended; none: the
  // sequence has left.
  virtual void observe(uint32_t seat, std::span<const TokenId> known, bool begins) = 0;
  virtual uint32_t grades() const = 0;
  virtual DraftSource source() const = 0;
  // What may be done once a step may be done again.
  virtual void begin_step() {}
  // Rows of prompts that were taken since: what nobody guesses from is an expense of the step all the same.
  virtual uint32_t prompt_rows() const { return 0; }
  // Microseconds of a draft. Who takes none is asked before it is known how many drafts pay, others behind.
  virtual double us_per_draft() const { return 0; }
};

// How often the guesses of one grade were right in one sequence, and whether to go on guessing.
class Acceptance {
 public:
  // The chance that the next drafted token is accepted, with `known` tokens; 0: a pause.
  double chance(uint32_t known) const {
    if (known >= told_at_ + kPauseTokens) return std::max(chance_, kStart);  // what was learnt is old
    return hopeless_ >= kHopelessMax ? 0 : chance_;
  }
  // Of `proposed` tokens the first `accepted` were right, one after the other. Those behind the first wrong
  // one were not tested and say nothing.
  void observe(uint32_t proposed, uint32_t accepted, uint32_t known) {
    if (proposed == 0) return;
    for (uint32_t i = 0; i < accepted; ++i) chance_ += kWeight * (1 - chance_);
    if (accepted < proposed) chance_ -= kWeight * chance_;
    hopeless_ = chance_ < kHopeless ? hopeless_ + 1 : 0;
    told_at_ = known;
  }
  bool pauses(uint32_t known) const { return chance(known) == 0; }

 private:
  static constexpr double kStart = 0.5, kWeight = 0.1, kHopeless = 0.2;
  static constexpr uint32_t kHopelessMax = 16, kPauseTokens = 64;
  double chance_ = kStart;
  uint32_t hopeless_ = 0;  // guesses in a row after which the chance was poor
  uint32_t told_at_ = 0;   // known tokens at the last guess that was verified
};

}  // namespace tally::engine
