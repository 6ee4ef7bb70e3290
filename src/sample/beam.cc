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

bool read_beam_row(std::span<float> logits, const Params& params, const Context& context, BeamRowRoom room,
                   Scratch& scratch, BeamRow& row) {
  Scratch::State& state = scratch.state();
  TALLY_CHECK(!logits.empty() && logits.size() == state.vocab, "scratch of another vocabulary", logits.size(),
              state.vocab);
  row = {};
  const Scan raw_scan = scan(logits, state);
  if (raw_scan.not_finite_count != 0) return false;
  const double log_sum = log_sum_of(logits, raw_scan, state);
  row.best = room.best.first(best_logprobs(logits, log_sum, room.best, state));
  apply_masks(logits, params, context);
  scan(logits, state);
  const std::span<uint64_t> best = best_candidates(logits, room.tokens.size(), state);
  std::sort(best.begin(), best.end());
  size_t n = 0;
  for (const uint64_t c : best) {
    const TokenId id{static_cast<int32_t>(candidate_id(c))};
    const double logit = static_cast<double>(value_of_key(candidate_key(c)));
    if (std::isinf(logit)) continue;
    const bool is_end = contains(context.end_ids, id) || contains(params.stop_ids, id);
    room.tokens[n++] = {id, static_cast<float>(logit - log_sum), is_end};
  }
  row.tokens = room.tokens.first(n);
  return true;
}

BeamPool::BeamPool(const BeamRules& rules) : rules_(rules) {
  TALLY_CHECK(rules.width >= 1 && rules.tokens_max >= 1, "beams, tokens", rules.width, rules.tokens_max);
  const size_t places = place(rules.tokens_max, 0);
  nodes_.reserve(places);
  tops_.reserve(places * rules.top);
  top_counts_.reserve(places);
  done_.resize(rules.width + size_t{1});
  live_.reserve(rules.width);
  candidates_.reserve(rules.width * rules.row_tokens);
  way_.reserve(rules.tokens_max);
}

uint64_t BeamPool::bytes(const BeamRules& rules) {
  const uint64_t width = rules.width;
  return width * rules.tokens_max * (sizeof(Node) + rules.top * sizeof(TokenLogprob) + 1) +
         rules.tokens_max * sizeof(Step) + (width + 1) * sizeof(Hypothesis) + width * sizeof(Live) +
         width * rules.row_tokens * sizeof(Candidate) + sizeof(BeamPool);
}

double BeamPool::score(double cumulative, size_t length) const {
  return cumulative / std::pow(static_cast<double>(length), static_cast<double>(rules_.length_penalty));
}

// A sequence of the present length joins the finished ones, if it is one of the best `width`.
void BeamPool::finish(uint32_t parent, const BeamToken& last, double cumulative) {
  done_[done_count_] = {length_, cumulative, score(cumulative, length_), last.is_end, last, parent};
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

bool BeamPool::advance(std::span<const BeamRow> rows) {
  TALLY_CHECK(rows.size() == (length_ == 0 ? 1 : live_.size()) && length_ < rules_.tokens_max,
              "rows of a beam step", rows.size(), live_.size(), length_);
  candidates_.clear();
  for (uint32_t r = 0; r < rows.size(); ++r) {
    const double before = length_ == 0 ? 0 : live_[r].cumulative;
    for (const BeamToken& token : rows[r].tokens) {
      const double sum = before + static_cast<double>(token.logprob);
      if (std::isfinite(sum)) candidates_.push_back({sum, r, token});
    }
    const size_t told = std::min(rows[r].best.size(), rules_.top);
    top_counts_.resize(place(length_, r) + 1);
    top_counts_.back() = static_cast<uint8_t>(told);
    tops_.resize(place(length_, r) * rules_.top);
    tops_.insert(tops_.end(), rows[r].best.begin(), rows[r].best.begin() + static_cast<ptrdiff_t>(told));
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
      finish(c.parent, c.token, c.cumulative);
    }
  }
  if (live_.empty()) return false;
  while (live_.size() < rules_.width) {
    Live copy = live_.back();
    copy.cumulative = -std::numeric_limits<double>::infinity();
    live_.push_back(copy);
  }
  for (const Live& beam : live_) nodes_.push_back({beam.parent, beam.token});
  if (length_ == rules_.tokens_max) {
    for (uint32_t r = 0; r < live_.size(); ++r) {
      if (std::isfinite(live_[r].cumulative)) finish(live_[r].parent, live_[r].token, live_[r].cumulative);
    }
    return false;
  }
  return !hopeless();
}

std::span<const BeamPool::Step> BeamPool::way(const Hypothesis& hypothesis) {
  way_.resize(hypothesis.length);
  BeamToken token = hypothesis.last;
  size_t row = hypothesis.before_last;  // the token was taken from the row of this beam
  for (size_t step = hypothesis.length; step-- > 0;) {
    const size_t at = place(step, row);
    way_[step] = {token, std::span(tops_).subspan(at * rules_.top, top_counts_[at])};
    if (step == 0) break;
    const Node& before = nodes_[place(step - 1, row)];
    token = before.token, row = before.parent;
  }
  return way_;
}

}  // namespace tally::sample
