#include "engine/beams.h"

#include "base/check.h"

#include <algorithm>

namespace tally::engine {

BeamFamily::BeamFamily(const sample::BeamRules& rules, SeqId first,
                       const std::vector<std::shared_ptr<Stream>>& streams, std::shared_ptr<StreamRoom> room)
    : pool_(rules),
      left_(rules.width),
      row_tokens_(rules.row_tokens),
      top_(rules.top),
      share_(std::move(room), bytes(rules)) {
  share_.use(bytes(rules));
  for (uint32_t i = 0; i < rules.width; ++i) sequences_.push_back(SeqId{raw(first) + i});
  for (const auto& stream : streams) streams_.push_back(std::static_pointer_cast<TokenStream>(stream));
  row_room_.resize(rules.width * row_tokens_);
  best_room_.resize(rules.width * top_);
  rows_.resize(rules.width);
  slot_of_rank_.resize(rules.width);
  next_slots_.resize(rules.width);
  outcomes_.resize(rules.width);
  by_rank_.reserve(rules.width);
  answers_.reserve(streams_.size());
}

uint64_t BeamFamily::bytes(const sample::BeamRules& rules) {
  const uint64_t rows = rules.row_tokens * sizeof(sample::BeamToken) +
                        rules.top * sizeof(sample::TokenLogprob) + 2 * sizeof(sample::BeamRow) +
                        sizeof(sched::Outcome);
  return sample::BeamPool::bytes(rules) + rules.width * rows + sizeof(BeamFamily);
}

sample::BeamRowRoom BeamFamily::room(SeqId seq) {
  const size_t slot = slot_of(seq);
  return {std::span(row_room_).subspan(slot * row_tokens_, row_tokens_),
          std::span(best_room_).subspan(slot * top_, top_)};
}

void BeamFamily::advance(bool first) {
  constexpr uint32_t kNone = UINT32_MAX;
  by_rank_.clear();
  for (size_t rank = 0; rank < (first ? 1 : sequences_.size()); ++rank) {
    const size_t slot = first ? 0 : slot_of_rank_[rank];
    by_rank_.push_back(rows_[slot]);
  }
  const bool over = !pool_.advance(by_rank_);
  const std::span<const sample::BeamPool::Live> live = pool_.live();
  failed = dead_end = over && pool_.best().empty();
  if (over) {  // the tokens of the sequences matter no more
    for (sched::Outcome& o : outcomes_) o = {.token = TokenId{0}, .stop = true};
    return;
  }
  // The first to go on from a beam stays in its sequence, the others move to those that nobody goes on from.
  std::fill(next_slots_.begin(), next_slots_.end(), kNone);
  for (sched::Outcome& o : outcomes_) o = {.token = TokenId{-1}};
  if (!first) {
    for (size_t r = 0; r < live.size(); ++r) {
      const uint32_t slot = slot_of_rank_[live[r].parent];
      if (raw(outcomes_[slot].token) >= 0) continue;
      outcomes_[slot].token = live[r].token.id;
      next_slots_[r] = slot;
    }
  }
  uint32_t free_slot = 0;
  for (size_t r = 0; r < live.size(); ++r) {
    if (next_slots_[r] != kNone) continue;
    while (raw(outcomes_[free_slot].token) >= 0) ++free_slot;
    outcomes_[free_slot].token = live[r].token.id;
    if (!first) outcomes_[free_slot].from = sequences_[slot_of_rank_[live[r].parent]];
    next_slots_[r] = free_slot;
  }
  std::swap(slot_of_rank_, next_slots_);
}

bool BeamFamily::leave(const Receipt& receipt) {
  if (left_ == sequences_.size()) {
    receipt_ = receipt;
  } else {
    receipt_.weight_bytes_read += receipt.weight_bytes_read;
    receipt_.kv_blocks += receipt.kv_blocks, receipt_.kv_blocks_shared += receipt.kv_blocks_shared;
    receipt_.kv_bytes += receipt.kv_bytes;
  }
  return --left_ == 0;
}

void BeamFamily::finish(Finish reason, int64_t now_us) {
  const bool complete = reason == Finish::kStop || reason == Finish::kLength;
  const std::span<const sample::BeamPool::Hypothesis> best = pool_.best();
  for (size_t i = 0; i < streams_.size(); ++i) {
    Answer answer{reason, receipt_};
    answer.receipt.generated_tokens = 0;
    if (i > 0) {
      answer.receipt.weight_bytes_read = answer.receipt.kv_bytes = 0;
      answer.receipt.kv_blocks = answer.receipt.kv_blocks_shared = answer.receipt.steps = 0;
    }
    if (complete && i < best.size()) {
      for (const sample::BeamPool::Step& step : pool_.way(best[i])) {
        sample::Pick pick{.id = step.token.id, .is_end = step.token.is_end, .logprob = step.token.logprob};
        pick.top_count = static_cast<uint8_t>(step.best.size());
        std::copy(step.best.begin(), step.best.end(), pick.top.begin());
        streams_[i]->append(pick, now_us);
      }
      answer.finish = best[i].ended ? Finish::kStop : Finish::kLength;
      answer.receipt.generated_tokens = best[i].length;
      answer.receipt.cumulative_logprob = static_cast<float>(best[i].cumulative);
    }
    streams_[i]->end(answer.finish, answer.receipt);
    answers_.push_back(answer);
  }
}

}  // namespace tally::engine
