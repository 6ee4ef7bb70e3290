#include "engine/drafts/draft_model.h"

#include "base/check.h"
#include "base/clock.h"

#include <algorithm>
#include <cmath>

namespace tally::engine {

DraftModel::DraftModel(DraftModelParts parts, uint32_t seats, base::ThreadPool& pool)
    : parts_(std::move(parts)),
      view_(&parts_.shape, parts_.memory.data()),
      pool_(pool),
      seats_(seats),
      sample_scratch_(parts_.model->spec().vocab),
      row_(parts_.vocab),
      draw_scratch_(parts_.vocab) {
  const uint32_t block_tokens = parts_.shape.layers.front().block_tokens;
  for (uint32_t b = parts_.shape.blocks; b-- > 0;) free_.push_back(b);
  for (Seat& s : seats_) {
    s.cached.reserve(parts_.context);
    s.table.reserve(parts_.context / block_tokens + size_t{1});
  }
  constexpr int kTries = 5;  // the least counts, for what disturbs only adds
  const TokenId any{0};
  for (int i = 0; i < kTries; ++i) {
    TALLY_CHECK(grow(seats_[0], 1), "a pool without blocks", parts_.shape.blocks);
    const int64_t begin = base::now_us();
    forward(seats_[0], std::span(&any, 1), true);
    likeliest();
    const auto took = static_cast<double>(std::max<int64_t>(1, base::now_us() - begin));
    us_ = i == 0 ? took : std::min(us_, took);
    observe(0, {}, true);
  }
}

bool DraftModel::grow(Seat& s, size_t tokens) {
  const size_t block_tokens = parts_.shape.layers.front().block_tokens;
  while (s.table.size() * block_tokens < tokens) {
    if (free_.empty()) return false;
    s.table.push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

// Requires: blocks for them behind what is cached.
void DraftModel::forward(Seat& s, std::span<const TokenId> tokens, bool logits) {
  const auto rows = static_cast<uint32_t>(tokens.size());
  const model::Segment segment{0, rows, static_cast<uint32_t>(s.cached.size()), 0};
  const uint32_t last = rows - 1;
  parts_.model->forward({tokens, {&segment, 1}, s.table, std::span(&last, size_t{logits})}, view_, parts_.scratch,
                        pool_);
  s.cached.insert(s.cached.end(), tokens.begin(), tokens.end());
}

DraftModel::Guessed DraftModel::likeliest() {
  sample::Params greedy;
  greedy.temperature = 0, greedy.logprobs = 0;
  const sample::Pick pick = sample::pick(parts_.scratch.logits(0), greedy, {{}, {}, {}, {}}, sample_scratch_);
  return {pick.id, pick.finite ? std::exp(static_cast<double>(pick.logprob)) : 0};
}

// By the sequence's own chain, of this model's row; ids it lacks have no chance, nor has what no draft has:
// were it drawn and left out, the chances would be others than those written down.
DraftModel::Guessed DraftModel::drawn(const Ask& ask, uint32_t count) {
  constexpr float kNoChance = -1e30f;  // finite: a mask is the sampler's to set
  const std::span<const float> logits = parts_.scratch.logits(0);
  const size_t common = std::min(logits.size(), row_.size());
  std::copy_n(logits.begin(), common, row_.begin());
  std::fill(row_.begin() + static_cast<ptrdiff_t>(common), row_.end(), kNoChance);
  for (const TokenId id : parts_.stops) row_[static_cast<size_t>(raw(id))] = kNoChance;
  const sample::Context context{ask.known.first(ask.chooser.prompt_tokens),
                                ask.known.subspan(ask.chooser.prompt_tokens),
                                ask.chooser.end_ids,
                                ask.chooser.suppressed_ids,
                                ask.chooser.choice,
                                {},
                                ask.into.first(count)};
  const auto chances = ask.chances.subspan(count * row_.size(), row_.size());
  const sample::Pick pick = sample::draw_guess(row_, *ask.chooser.params, context, chances, draw_scratch_);
  return {pick.id, pick.finite ? static_cast<double>(*std::ranges::max_element(chances)) : 0};
}

// Whether all known tokens are in the blocks, with the logits behind the last.
bool DraftModel::take_known(Seat& s, std::span<const TokenId> known) {
  // Its last known token is computed again if it was: the logits behind it are wanted.
  const auto same = std::ranges::mismatch(s.cached, known.first(known.size() - 1)).in1 - s.cached.begin();
  s.cached.resize(static_cast<size_t>(same));
  const auto behind = known.subspan(s.cached.size());
  // Of a text with tokens that only the larger model has, nothing is guessed.
  const auto is_unknown = [&](TokenId id) { return static_cast<uint64_t>(raw(id)) >= parts_.model->spec().vocab; };
  if (std::ranges::any_of(behind, is_unknown)) return false;
  constexpr size_t kCommitMax = kDraftsMax + 1;  // what a step may have added: no prompt
  const bool is_prompt = behind.size() > kCommitMax;
  if (is_prompt && prompt_rows_ > 0) return false;
  const auto rows = behind.first(std::min<size_t>(behind.size(), parts_.rows_max));
  if (is_prompt) prompt_rows_ += static_cast<uint32_t>(rows.size());
  forward(s, rows, rows.size() == behind.size());
  return rows.size() == behind.size();
}

Proposal DraftModel::propose(const Ask& ask) {
  Seat& s = seats_[ask.seat];
  if (ask.known.size() >= parts_.context) return {};
  const auto into = ask.into.first(std::min(ask.into.size(), parts_.context - ask.known.size()));
  if (into.empty() || !grow(s, ask.known.size() + into.size() - 1)) return {};
  if (!take_known(s, ask.known)) return {};
  const bool draws = ask.chooser.params != nullptr && !ask.chances.empty();
  uint32_t count = 0;
  for (;;) {
    Guessed guess = draws ? drawn(ask, count) : likeliest();
    if (parts_.text) guess.id = parts_.text(ask.known.size() + count);
    if (guess.probability < parts_.sure_enough ||
        (!draws && std::binary_search(parts_.stops.begin(), parts_.stops.end(), guess.id)))
      break;
    into[count++] = guess.id;
    if (count == into.size()) break;
    if (static_cast<uint64_t>(raw(guess.id)) >= parts_.model->spec().vocab) break;  // by a bias alone
    forward(s, std::span(&guess.id, 1), true);
  }
  return {.count = count, .grade = 0, .is_drawn = draws};
}

void DraftModel::observe(uint32_t seat, std::span<const TokenId>, bool begins) {
  if (!begins) return;  // what was committed is compared when it is asked
  Seat& s = seats_[seat];
  s.cached.clear();
  free_.insert(free_.end(), s.table.rbegin(), s.table.rend());
  s.table.clear();
}

}  // namespace tally::engine
