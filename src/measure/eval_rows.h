// What two rows of logits over the same vocabulary say of each other.
#pragma once

#include "base/ids.h"

#include <cstddef>
#include <span>
#include <vector>

namespace tally::measure {

// One row: how likely the right token was, and which was the likeliest (of equals the lower id).
struct RowScore {
  double nll = 0;  // nats
  TokenId top{};
};

// A row to measure others against, with the room that takes; a worker uses one again and again.
class ReferenceRow {
 public:
  // Reads a row. Requires: not empty, finite, `right` in it; `logits` stays while others are compared.
  RowScore set(std::span<const float> logits, TokenId right);
  // Scores another row of the same length; `kld`: KL(this || other), nats, at least 0.
  RowScore compare(std::span<const float> logits, TokenId right, double& kld) const;

 private:
  std::span<const float> logits_;
  std::vector<float> weights_;  // exp(logit - most)
  double sum_ = 0, log_sum_ = 0;
};

RowScore score_row(std::span<const float> logits, TokenId right);

}  // namespace tally::measure
