#include "sample/beam.h"

#include "base/check.h"
#include "sample/exp_log.h"
#include "sample/masks.h"
#include "sample/row.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tally::sample {

size_t beam_tokens_of_row(uint32_t width, size_t end_ids) {
  // Whatever ends, `width` others remain.
  return width + std::max<size_t>(width, end_ids);
}

size_t best_tokens(std::span<float> logits, const Params& params, const Context& context,
                   std::span<BeamToken> out, Scratch& scratch, bool& finite) {
  Scratch::State& state = scratch.state();
  TALLY_CHECK(!logits.empty() && logits.size() == state.vocab, "scratch of another vocabulary", logits.size(),
              state.vocab);
  const Scan raw_scan = scan(logits, state);
  finite = raw_scan.not_finite_count == 0;
  if (!finite) return 0;
  const Softmax softmax{.max = value_of_key(raw_scan.key_max)};
  const double log_sum =
      static_cast<double>(softmax.max) + log_positive(fill_weights(logits, softmax, state));
  apply_masks(logits, params, context);
  scan(logits, state);
  const std::span<uint64_t> best = best_candidates(logits, out.size(), state);
  std::sort(best.begin(), best.end());
  size_t n = 0;
  for (const uint64_t c : best) {
    const TokenId id{static_cast<int32_t>(candidate_id(c))};
    const double logit = static_cast<double>(value_of_key(candidate_key(c)));
    if (std::isinf(logit)) continue;
    const bool is_end = contains(context.end_ids, id) || contains(params.stop_ids, id);
    out[n++] = {id, static_cast<float>(logit - log_sum), is_end};
  }
  return n;
}

BeamPool::BeamPool(const BeamRules& rules) : rules_(rules) {
  TALLY_CHECK(rules.width >= 1 && rules.tokens_max >= 1, "beams, tokens", rules.width, rules.tokens_max);
  histories_.resize(rules.width);
  next_histories_.resize(rules.width);
  done_.resize(rules.width + size_t{1});
  for (auto* lists : {&histories_, &next_histories_}) {
    for (std::vector<BeamToken>& list : *lists) list.reserve(rules.tokens_max);
  }
  for (Hypothesis& h : done_) h.tokens.reserve(rules.tokens_max);
  live_.reserve(rules.width);
  candidates_.reserve(rules.width * rules.row_tokens);
}

double BeamPool::score(double cumulative, size_t length) const {
  return cumulative / std::pow(static_cast<double>(length), static_cast<double>(rules_.length_penalty));
}

// A sequence of the present length, `last` its token of this step (none: it has it already), joins the
// finished ones, if it is one of the best `width`.
void BeamPool::finish(uint32_t parent, const BeamToken* last, double cumulative) {
  Hypothesis& h = done_[done_count_];
  h.tokens.assign(histories_[parent].begin(), histories_[parent].end());
  if (last != nullptr) h.tokens.push_back(*last);
  h.cumulative = cumulative;
  h.score = score(cumulative, h.tokens.size());
  h.ended = last != nullptr;
  size_t at = done_count_;
  for (; at > 0 && done_[at].score > done_[at - 1].score; --at) std::swap(done_[at], done_[at - 1]);
  done_count_ = std::min<size_t>(done_count_ + 1, rules_.width);
}

// Can no live beam still become one of the finished?
bool BeamPool::hopeless() const {
  if (done_count_ < rules_.width) return false;
  if (rules_.stop == EarlyStop::kWidth) return true;
  // A negative penalty, or none, makes short ones best; a positive one the longest.
  const size_t length =
      rules_.stop == EarlyStop::kLongest && rules_.length_penalty > 0 ? rules_.tokens_max : length_;
  return score(live_.front().cumulative, length) <= done_[done_count_ - 1].score;
}

bool BeamPool::advance(std::span<const std::span<const BeamToken>> rows) {
  TALLY_CHECK(rows.size() == (length_ == 0 ? 1 : live_.size()) && length_ < rules_.tokens_max,
              "rows of a beam step", rows.size(), live_.size(), length_);
  candidates_.clear();
  for (uint32_t r = 0; r < rows.size(); ++r) {
    const double before = length_ == 0 ? 0 : live_[r].cumulative;
    for (const BeamToken& token : rows[r]) {
      const double sum = before + static_cast<double>(token.logprob);
      if (std::isfinite(sum)) candidates_.push_back({sum, r, token});
    }
  }
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    if (a.cumulative != b.cumulative) return a.cumulative > b.cumulative;
    return a.parent != b.parent ? a.parent < b.parent : raw(a.token.id) < raw(b.token.id);
  });

  ++length_;
  live_.clear();
  for (size_t i = 0; i < candidates_.size(); ++i) {
    const Candidate& c = candidates_[i];
    if (!c.token.is_end && live_.size() < rules_.width) {
      live_.push_back({c.parent, c.token, c.cumulative});
    } else if (c.token.is_end && i < size_t{2} * rules_.width) {
      finish(c.parent, &c.token, c.cumulative);
    }
  }
  if (live_.empty()) return false;
  while (live_.size() < rules_.width) {
    Live copy = live_.back();
    copy.cumulative = -std::numeric_limits<double>::infinity();
    live_.push_back(copy);
  }
  for (size_t r = 0; r < live_.size(); ++r) {
    const std::vector<BeamToken>& from = histories_[live_[r].parent];
    next_histories_[r].assign(from.begin(), from.end());
    next_histories_[r].push_back(live_[r].token);
  }
  std::swap(histories_, next_histories_);
  if (length_ == rules_.tokens_max) {
    for (uint32_t r = 0; r < live_.size(); ++r) {
      if (std::isfinite(live_[r].cumulative)) finish(r, nullptr, live_[r].cumulative);
    }
    return false;
  }
  return !hopeless();
}

}  // namespace tally::sample
