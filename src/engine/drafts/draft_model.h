#pragma once
// A smaller model of the same vocabulary that guesses what the larger one says: one pass for each token, the
// likeliest each time, as long as it is sure enough. It has keys and values of its own, a block table for each
// seat; where the two part, it goes back to the last token they have in common.

#include "base/accounts.h"
#include "base/pool.h"
#include "engine/drafts/proposer.h"
#include "kv/view.h"
#include "model/model.h"
#include "sample/sampler.h"

#include <functional>
#include <memory>
#include <vector>

namespace tally::engine {

struct DraftModelParts {
  std::unique_ptr<model::Model> model;
  kv::PoolShape shape;
  base::Arena memory;
  model::Scratch scratch;          // of rows_max rows, one of them with logits
  std::vector<TokenId> stops;      // ascending: what no draft has
  double sure_enough = 0;          // less sure of its likeliest token, it stops: most such drafts are wrong
  // Tests: guesses what this says instead, and takes its time; or none.
  std::function<TokenId(size_t position)> text;
  uint32_t context = 0, rows_max = 0;
  uint32_t vocab = 0;  // of the model it drafts for, to draw among its ids; 0: nothing is drawn
};

class DraftModel final : public Proposer {
 public:
  // What it needs to draw, beside the chances.
  static uint64_t drawing_bytes(uint32_t vocab) {
    return vocab * sizeof(float) + sample::Scratch::bytes(vocab);
  }

  // Measures what a draft takes. Requires: `pool` outlives it.
  DraftModel(DraftModelParts parts, uint32_t seats, base::ThreadPool& pool);

  // A prompt is taken in chunks of rows_max rows, one chunk a step for all seats, so that those who run wait
  // no longer; until it is there, and where there are no blocks, nothing is guessed.
  Proposal propose(const Ask& ask) override;
  void observe(uint32_t seat, std::span<const TokenId> known, bool begins) override;
  uint32_t grades() const override { return 1; }
  DraftSource source() const override { return DraftSource::kModel; }
  void begin_step() override { prompt_rows_ = 0; }
  uint32_t prompt_rows() const override { return prompt_rows_; }
  double us_per_draft() const override { return us_; }

 private:
  struct Seat {
    std::vector<TokenId> cached;  // whose keys and values are in its blocks
    std::vector<uint32_t> table;
  };
  bool grow(Seat& seat, size_t tokens);
  void forward(Seat& seat, std::span<const TokenId> tokens, bool logits);
  bool take_known(Seat& seat, std::span<const TokenId> known);
  // A guess after `count` others, and the probability of what is likeliest.
  struct Guessed {
    TokenId id{};
    double probability = 0;
  };
  Guessed likeliest();
  Guessed drawn(const Ask& ask, uint32_t count);

  DraftModelParts parts_;
  const kv::View view_;
  base::ThreadPool& pool_;
  std::vector<Seat> seats_;
  std::vector<uint32_t> free_;  // blocks
  sample::Scratch sample_scratch_;
  std::vector<float> row_;  // [vocab] of the larger model, where guesses are drawn
  sample::Scratch draw_scratch_;
  uint32_t prompt_rows_ = 0;  // in this step
  double us_ = 0;
};

}  // namespace tally::engine
