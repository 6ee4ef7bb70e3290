#pragma once
// Beam search as pure bookkeeping: which sequences go on with which token, which are finished, and when it is
// over. Log-probabilities are of the raw logits; masked tokens (suppressed ids; end ids until min_tokens, or
// with ignore_eos) take no part.
//
// A step with W beams: of all (beam, token) by cumulative log-probability (ties: beam of the better rank,
// then lower id) the best 2W are looked at; those that end join the finished ones, of which the W best stay;
// the best W of the others go on. Score = cumulative / length^length_penalty, length in generated tokens,
// with the end token. Over: see EarlyStop; or at the longest length, where beams that go on count as
// finished.

#include "sample/sampler.h"

#include <cstdint>
#include <span>
#include <vector>

namespace tally::sample {

// kWidth: as soon as W are finished. kPresent: when no beam, at its present length, beats the worst of W
// finished. kLongest: when none could at the length that favours it most.
enum class EarlyStop : uint8_t { kPresent, kWidth, kLongest };

struct BeamRules {
  uint32_t width = 1;
  float length_penalty = 1;
  EarlyStop stop = EarlyStop::kPresent;
  uint32_t tokens_max = 0;  // of a sequence
  size_t row_tokens = 0;    // of a row that a step may bring: beam_tokens_of_row
  size_t top = 0;           // best tokens told with each token, as Params::logprobs
};

struct BeamToken {
  TokenId id{};
  float logprob = 0;
  bool is_end = false;
};

// What a step brings of one row of logits.
struct BeamRow {
  std::span<const BeamToken> tokens;   // that may come, best first
  std::span<const TokenLogprob> best;  // of the raw row, best first, whether they may come or not
};
// Room for one.
struct BeamRowRoom {
  std::span<BeamToken> tokens;
  std::span<TokenLogprob> best;
};

// Fills what there is room for. False, and nothing is written: the row held NaN or infinity.
// Shapes: logits [vocab] f32, overwritten.
bool read_beam_row(std::span<float> logits, const Params& params, const Context& context, BeamRowRoom room,
                   Scratch& scratch, BeamRow& row);
// Tokens of a row that a search of this width may look at.
size_t beam_tokens_of_row(uint32_t width, size_t end_ids);

// The beams are a tree: a token of a step and which beam of the step before it goes on from.
class BeamPool {
 public:
  // A sequence that has finished: read it with way().
  struct Hypothesis {
    uint32_t length = 0;  // tokens
    double cumulative = 0, score = 0;
    bool ended = false;  // by an end token
    BeamToken last;
    uint32_t before_last = 0;  // rank, one step earlier, of the beam it went on from
  };
  struct Live {
    uint32_t parent = 0;  // rank of the beam it goes on from
    BeamToken token;
    double cumulative = 0;
  };
  struct Step {
    BeamToken token;
    std::span<const TokenLogprob> best;  // of the row it was taken from
  };

  // Reserves all it will need: steps allocate nothing.
  explicit BeamPool(const BeamRules& rules);
  static uint64_t bytes(const BeamRules& rules);

  // One step. rows[r]: of the beam of rank r; at the first step one row. False: it is over. Requires: it was
  // not over.
  bool advance(std::span<const BeamRow> rows);
  // The beams that go on, by rank: `width` of them, of which the last may be copies with no chance.
  std::span<const Live> live() const { return live_; }
  // Best first (score, then the earlier finished). Complete when it is over.
  std::span<const Hypothesis> best() const { return {done_.data(), done_count_}; }
  // The tokens of a hypothesis, first to last; until the next call.
  std::span<const Step> way(const Hypothesis& hypothesis);

 private:
  struct Node {
    uint32_t parent = 0;
    BeamToken token;
  };
  struct Candidate {
    double cumulative = 0;
    uint32_t parent = 0;
    BeamToken token;
  };
  double score(double cumulative, size_t length) const;
  void finish(uint32_t parent, const BeamToken& last, double cumulative);
  bool hopeless() const;
  size_t place(size_t step, size_t rank) const { return step * rules_.width + rank; }

  const BeamRules rules_;
  uint32_t length_ = 0;
  std::vector<Candidate> candidates_;
  std::vector<Live> live_;
  std::vector<Node> nodes_;            // [step][rank]
  std::vector<TokenLogprob> tops_;     // [step][rank of the row][rules_.top]
  std::vector<uint8_t> top_counts_;    // [step][rank of the row]
  std::vector<Hypothesis> done_;       // width + 1, so that one can join before the worst leaves
  std::vector<Step> way_;
  size_t done_count_ = 0;
};

}  // namespace tally::sample
