#include "engine/disk/promoter.h"

#include "base/clock.h"

#include <algorithm>

namespace tally::engine {
namespace {

constexpr size_t kReadBlocksMax = 16;  // at once: between two reads, a step may come
// Of the times that computing is quicker, one in so many is read all the same: disks change.
constexpr uint64_t kProbeEvery = 32;
constexpr uint32_t kPrefillRowsMin = 64;  // fewer say little of the speed of many

}  // namespace

bool Promoter::begin(sched::Scheduler& scheduler, const kv::Ledger& ledger, Tick now) {
  tier_->follow(ledger);
  while (!newcomers_.empty()) {
    Newcomer& newcomer = newcomers_.front();
    if (!scheduler.waits(newcomer.seq)) {  // cancelled, or too late
      newcomers_.pop_front();
      continue;
    }
    if (newcomer.keys.empty()) {  // the last token is always computed, for its logits
      const std::span<const TokenId> tokens = scheduler.tokens(newcomer.seq);
      newcomer.keys = tier_->keys(newcomer.space, tokens.first(tokens.size() - 1));
    }
    const uint32_t matched = scheduler.matched_blocks(newcomer.seq);
    places_ = tier_->find(std::span(newcomer.keys).subspan(std::min<size_t>(matched, newcomer.keys.size())),
                          kReadBlocksMax);
    if (places_.empty()) {
      release_first(scheduler);
      continue;
    }
    if (!pays()) {
      tier_->refuse(places_);
      release_first(scheduler);
      continue;
    }
    const auto taken = scheduler.adopt(newcomer.seq, static_cast<uint32_t>(places_.size()), now);
    blocks_.assign(taken.begin(), taken.end());
    tier_->follow(ledger);
    if (!blocks_.empty()) return true;
    scheduler.adopted(0, now);
    tier_->release(places_);
    release_first(scheduler);  // no room: who runs needs it
  }
  return false;
}

// Is reading quicker than computing? Unknown rates are found out by reading.
bool Promoter::pays() {
  const double read = tier_->bytes_per_s(), compute = prefill_rate_;
  if (read == 0 || compute == 0) return true;
  const double read_s = static_cast<double>(tier_->block_bytes()) / read;
  const double compute_s = tier_->block_tokens() / compute;
  return read_s <= compute_s || ++refusals_ % kProbeEvery == 0;
}

void Promoter::read(const kv::View& view) {
  tier_->save(view);
  is_read_.assign(blocks_.size(), 0);
  const int64_t begin = base::now_us();
  pool_.parallel_for(blocks_.size(), [&](size_t i, size_t) {
    is_read_[i] = tier_->read(places_[i], view, blocks_[i]) ? 1 : 0;
  });
  seconds_ = static_cast<double>(base::now_us() - begin) * 1e-6;
}

Promoter::Promoted Promoter::end(sched::Scheduler& scheduler, const kv::Ledger& ledger, Tick now) {
  const auto bad = std::ranges::find(is_read_, uint8_t{0});
  const auto good = static_cast<uint32_t>(bad - is_read_.begin());
  scheduler.adopted(good, now);
  tier_->follow(ledger);
  tier_->note_read(good, seconds_);
  for (size_t i = good; i < is_read_.size(); ++i)  // all of them: what stays in the file is not written anew
    if (is_read_[i] == 0) tier_->note_damaged(places_[i]);
  tier_->release(places_);
  Newcomer& newcomer = newcomers_.front();
  const Promoted done{newcomer.seq, good};
  newcomer.read_blocks += good;
  // What was read for one may have to leave for another: nobody reads more than a prompt has.
  if (good < kReadBlocksMax || newcomer.read_blocks >= newcomer.keys.size()) {
    release_first(scheduler);
  } else {  // in turns: one with little to read does not wait for those with much
    std::rotate(newcomers_.begin(), newcomers_.begin() + 1, newcomers_.end());
  }
  return done;
}

void Promoter::release_first(sched::Scheduler& scheduler) {
  scheduler.release(newcomers_.front().seq);
  newcomers_.pop_front();
}

void Promoter::note_prefill(uint32_t rows, double seconds) {
  if (rows < kPrefillRowsMin || seconds <= 0) return;
  const double rate = rows / seconds;
  constexpr double kNew = 0.25;
  prefill_rate_ = prefill_rate_ == 0 ? rate : prefill_rate_ + kNew * (rate - prefill_rate_);
}

}  // namespace tally::engine
