#include "measure/eval_rows.h"

#include "base/check.h"

#include <algorithm>
#include <cmath>

namespace tally::measure {
namespace {

// Of a row: the largest logit, and log sum exp. `keep(i, w)` takes each exp(logit - largest).
struct LogSum {
  size_t top = 0;
  double sum = 0, value = 0;
};
LogSum log_sum(std::span<const float> logits, const auto& keep) {
  LogSum out;
  out.top = static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const float most = logits[out.top];
  for (size_t i = 0; i < logits.size(); ++i) {
    const float weight = std::exp(logits[i] - most);
    out.sum += weight;
    keep(i, weight);
  }
  out.value = most + std::log(out.sum);
  return out;
}

RowScore score(std::span<const float> logits, const LogSum& sum, TokenId right) {
  const auto at = static_cast<size_t>(raw(right));
  TALLY_CHECK(at < logits.size(), "token {} of {}", at, logits.size());
  return {sum.value - logits[at], TokenId{static_cast<int32_t>(sum.top)}};
}

}  // namespace

RowScore ReferenceRow::set(std::span<const float> logits, TokenId right) {
  logits_ = logits;
  weights_.resize(logits.size());
  const LogSum sum = log_sum(logits, [&](size_t i, float w) { weights_[i] = w; });
  sum_ = sum.sum, log_sum_ = sum.value;
  return score(logits, sum, right);
}

RowScore ReferenceRow::compare(std::span<const float> logits, TokenId right, double& kld) const {
  TALLY_CHECK(logits.size() == logits_.size(), "rows of {} and {}", logits_.size(), logits.size());
  double moved = 0;
  const LogSum sum = log_sum(
      logits, [&](size_t i, float) { moved += weights_[i] * (static_cast<double>(logits_[i]) - logits[i]); });
  kld = std::max(0.0, moved / sum_ + (sum.value - log_sum_));
  return score(logits, sum, right);
}

RowScore score_row(std::span<const float> logits, TokenId right) {
  return score(logits, log_sum(logits, [](size_t, float) {}), right);
}

}  // namespace tally::measure
