#pragma once
// One row of logits in, one decision out.
//
// The chain, in this order: logprobs of the raw logits are taken; what the constraint does not allow,
// suppressed and (until min_tokens, or ignore_eos) end ids are masked, but for end ids where the constraint
// leaves nothing else; logit_bias is added; repetition, then presence and frequency penalties;
// temperature 0: the largest logit wins (ties: lower id). Else: divide by temperature; keep top_k; softmax;
// keep top_p; keep min_p; draw by the counter-based generator keyed by (seed, choice, position). Sorting is
// total: by logit descending, then id ascending. No state is shared between requests, and nothing is
// allocated once scratch has been reserved.
//
// With w(i) = exp((logit(i) - largest) / temperature): top_p keeps the shortest sorted prefix of what top_k
// left that holds top_p of its weight; min_p keeps w >= min_p, as the largest w is 1; the draw takes the
// first of the kept tokens, in order of id, at which the running sum of w passes uniform x sum of the kept w.

#include "base/ids.h"
#include "sample/params.h"

#include <array>
#include <cstdint>
#include <memory>
#include <span>

namespace tally::sample {

struct TokenLogprob {
  TokenId id{};
  float logprob = 0;  // natural log of the softmax of the raw logits
};

struct Pick {
  TokenId id{};
  bool finite = true;     // false: the row held NaN or infinity, or everything was masked; id is meaningless
  bool dead_end = false;  // not finite because the constraint and the other masks leave nothing
  bool is_end = false;    // id is one of the end ids or the request's stop ids
  float logprob = 0;      // of id, if params.logprobs >= 0
  uint8_t top_count = 0;  // params.logprobs best, best first
  std::array<TokenLogprob, kLogprobsMax> top{};
};

// What a row says of a token that is known already.
struct Score {
  bool finite = true;     // false: the row held NaN or infinity; the rest is meaningless
  float logprob = 0;      // of the token
  uint32_t rank = 0;      // from 1: one more than there are tokens before it in order
  uint8_t top_count = 0;  // the best, best first
  std::array<TokenLogprob, kLogprobsMax> top{};
};

// What the sampler knows about the sequence.
struct Context {
  std::span<const TokenId> prompt;
  std::span<const TokenId> generated;
  std::span<const TokenId> end_ids;         // of the model, ascending
  std::span<const TokenId> suppressed_ids;  // of the model, ascending
  uint32_t choice = 0;
  std::span<const uint32_t> allowed = {};  // of the constraint (ConstraintMatcher); empty: every id
  // Drafts that were found right in this step: they count as generated ones, and stand elsewhere.
  std::span<const TokenId> drafts = {};
  size_t position() const { return generated.size() + drafts.size(); }
};

// Buffers of one worker for one vocabulary: reserve once, pick any number of times.
class Scratch {
 public:
  explicit Scratch(size_t vocab_size);
  Scratch(Scratch&&) noexcept;
  Scratch& operator=(Scratch&&) noexcept;
  ~Scratch();
  static size_t bytes(size_t vocab_size);  // for the plan

  struct State;
  State& state() { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

// Shapes: logits [vocab] f32, overwritten. The position of the draw is context.position().
Pick pick(std::span<float> logits, const Params& params, const Context& context, Scratch& scratch);

// A token that was guessed to come next, and how. Chances: [vocab], those it was drawn with; empty: it was
// not drawn, and had all of the chance.
struct Guess {
  TokenId id{};
  std::span<const float> chances = {};
};
// A pick that may agree with a guess: with p as `pick` draws and q the guess's chances, the guess holds with
// min(1, p / q), and else the token is drawn from max(0, p - q). Tokens are distributed as those of `pick`;
// of one seed they are others, and depend on the guess. Temperature 0: as `pick`. Source: Leviathan, Kalman,
// Matias: Fast Inference from Transformers via Speculative Decoding (ICML 2023).
Pick pick_or_accept(std::span<float> logits, const Params& params, const Context& context, const Guess& guess,
                    Scratch& scratch);
// Draws a guess from a row of another model by the same chain, with randomness of its own, and writes the
// chances it was drawn with. No log-probabilities. Requires: a temperature above 0. Shapes: chances [vocab].
Pick draw_guess(std::span<float> logits, const Params& params, const Context& context,
                std::span<float> chances, Scratch& scratch);
// Whether the largest logit wins, whatever is drawn.
bool is_greedy(const Params& params);

// Shapes: logits [vocab] f32. The log-probability is the one that `pick` tells of the same row. `top`: how
// many of the best, at most kLogprobsMax.
Score score(std::span<const float> logits, TokenId id, size_t top, Scratch& scratch);

}  // namespace tally::sample
