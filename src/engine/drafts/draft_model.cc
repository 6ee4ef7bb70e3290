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
      sample_scratch_(parts_.model->spec().vocab) {
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
    double probability = 0;
    forward(seats_[0], std::span(&any, 1), true);
    likeliest(probability);
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

TokenId DraftModel::likeliest(double& probability) {
  sample::Params greedy;
  greedy.temperature = 0, greedy.logprobs = 0;
  const sample::Pick pick =
      sample::pick(parts_.scratch.logits(0), greedy, {{}, {}, {}, {}}, sample_scratch_);
  probability = pick.finite ? std::exp(static_cast<double>(pick.logprob)) : 0;
  return pick.id;
}

Proposal DraftModel::propose(uint32_t seat, std::span<const TokenId> known, std::span<TokenId> into) {
  Seat& s = seats_[seat];
  if (known.size() >= parts_.context) return {};
  into = into.first(std::min(into.size(), parts_.context - known.size()));
  if (into.empty() || !grow(s, known.size() + into.size() - 1)) return {};
  // Its last known token is computed again if it was: the logits behind it are wanted.
  const auto same = std::ranges::mismatch(s.cached, known.first(known.size() - 1)).in1 - s.cached.begin();
  s.cached.resize(static_cast<size_t>(same));
  const auto behind = known.subspan(s.cached.size());
  // Of a text with tokens that only the larger model has, nothing is guessed.
  const auto is_unknown = [&](TokenId id) { return static_cast<uint64_t>(raw(id)) >= parts_.model->spec().vocab; };
  if (std::ranges::any_of(behind, is_unknown)) return {};
  const auto rows = behind.first(std::min<size_t>(behind.size(), parts_.rows_max));
  forward(s, rows, rows.size() == behind.size());
  if (rows.size() < behind.size()) return {};
  uint32_t count = 0;
  for (;;) {
    double probability = 0;
    const TokenId id = likeliest(probability);
    if (probability < parts_.sure_enough || std::binary_search(parts_.stops.begin(), parts_.stops.end(), id)) break;
    into[count++] = id;
    if (count == into.size()) break;
    forward(s, std::span(&id, 1), true);
  }
  return {count, 0};
}

void DraftModel::observe(uint32_t seat, std::span<const TokenId>, bool begins) {
  if (!begins) return;  // what was committed is compared when it is asked
  Seat& s = seats_[seat];
  s.cached.clear();
  free_.insert(free_.end(), s.table.rbegin(), s.table.rend());
  s.table.clear();
}

}  // namespace tally::engine
