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
  uint32_t context = 0, rows_max = 0;
};

class DraftModel final : public Proposer {
 public:
  // Measures what a draft takes. Requires: `pool` outlives it.
  DraftModel(DraftModelParts parts, uint32_t seats, base::ThreadPool& pool);

  // A prompt is taken in rows_max rows a call; until then, and where there are no blocks, nothing is guessed.
  Proposal propose(uint32_t seat, std::span<const TokenId> known, std::span<TokenId> into) override;
  void observe(uint32_t seat, std::span<const TokenId> known, bool begins) override;
  uint32_t grades() const override { return 1; }
  double us_per_draft() const override { return us_; }

 private:
  struct Seat {
    std::vector<TokenId> cached;  // whose keys and values are in its blocks
    std::vector<uint32_t> table;
  };
  bool grow(Seat& seat, size_t tokens);
  void forward(Seat& seat, std::span<const TokenId> tokens, bool logits);
  TokenId likeliest(double& probability);

  DraftModelParts parts_;
  const kv::View view_;
  base::ThreadPool& pool_;
  std::vector<Seat> seats_;
  std::vector<uint32_t> free_;  // blocks
  sample::Scratch sample_scratch_;
  double us_ = 0;
};

}  // namespace tally::engine
