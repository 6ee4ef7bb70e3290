#include "engine/stream.h"

#include "base/check.h"

#include <algorithm>

namespace tally::engine {

namespace {

// A token's time, whether it is an end, and how many best ones it has, in a word.
constexpr int kTimeShift = 6, kEndShift = 5;
constexpr uint64_t kTopMask = (uint64_t{1} << kEndShift) - 1;
static_assert(sample::kLogprobsMax <= kTopMask);

// Whole pages, as they are touched.
uint64_t in_pages(uint64_t bytes) {
  constexpr uint64_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

PromptScores::PromptScores(uint32_t last, uint8_t top, std::shared_ptr<StreamRoom> room)
    : last_(last),
      top_(top),
      records_(std::make_unique_for_overwrite<std::byte[]>(size_t{last} * sizeof(Record))),
      tops_(std::make_unique_for_overwrite<std::byte[]>(size_t{last} * top * sizeof(sample::TokenLogprob))),
      share_(std::move(room), bytes(last, top)) {
  share_.use(bytes_in_use(0, top));
}

uint64_t PromptScores::bytes_in_use(uint64_t written, uint8_t top) {
  return in_pages(written * sizeof(Record)) + in_pages(written * top * sizeof(sample::TokenLogprob)) +
         sizeof(PromptScores);
}

void PromptScores::publish(uint32_t through) {
  share_.use(bytes_in_use(through, top_));
  written_.store(through, std::memory_order_release);
}

void PromptScores::put(uint32_t position, const sample::Score& score) {
  TALLY_CHECK(position >= 1 && position <= last_, "a score beyond the prompt", position, last_);
  const size_t i = position - 1;
  const auto top = std::min(top_, score.top_count);
  std::construct_at(reinterpret_cast<Record*>(records_.get()) + i, Record{score.logprob, score.rank, top});
  std::uninitialized_copy_n(score.top.begin(), top,
                            reinterpret_cast<sample::TokenLogprob*>(tops_.get()) + i * top_);
}

bool PromptScores::read(uint32_t position, sample::Score& score) const {
  if (position == 0 || position > written_.load(std::memory_order_acquire)) return false;
  const size_t i = position - 1;
  const Record& r = *(reinterpret_cast<const Record*>(records_.get()) + i);
  score.finite = true, score.logprob = r.logprob, score.rank = r.rank, score.top_count = r.top_count;
  std::copy_n(reinterpret_cast<const sample::TokenLogprob*>(tops_.get()) + i * top_, r.top_count,
              score.top.begin());
  return true;
}

TokenStream::TokenStream(SeqId seq, StreamSize size, std::shared_ptr<Mailbox> mailbox,
                         std::function<void()> notify, std::shared_ptr<StreamRoom> room,
                         std::shared_ptr<const PromptScores> scores)
    : seq_(seq),
      top_(size.top),
      mailbox_(std::move(mailbox)),
      notify_(std::move(notify)),
      scores_(std::move(scores)),
      records_max_(size.tokens_max),
      records_(std::make_unique_for_overwrite<std::byte[]>(size_t{size.tokens_max} * sizeof(Record))),
      tops_(std::make_unique_for_overwrite<std::byte[]>(size_t{size.tokens_max} * size.top *
                                                        sizeof(sample::TokenLogprob))),
      share_(std::move(room), bytes(size.tokens_max, size.top)) {
  share_.use(bytes_in_use(0, top_));
}

uint64_t TokenStream::token_bytes(uint8_t top) {
  return sizeof(Record) + size_t{top} * sizeof(sample::TokenLogprob);
}

uint64_t TokenStream::bytes_in_use(uint64_t tokens, uint8_t top) {
  return in_pages(tokens * sizeof(Record)) + in_pages(tokens * top * sizeof(sample::TokenLogprob)) +
         sizeof(TokenStream);
}

bool TokenStream::next(TokenEvent& event) {
  if (read_ == written_.load(std::memory_order_acquire)) return false;
  const Record& r = *record(read_);
  event.id = r.id, event.logprob = r.logprob, event.time_us = static_cast<int64_t>(r.stamp >> kTimeShift);
  event.is_end = (r.stamp >> kEndShift & 1) != 0, event.top_count = static_cast<uint8_t>(r.stamp & kTopMask);
  std::copy_n(tops(read_), event.top_count, event.top.begin());
  ++read_;
  return true;
}

bool TokenStream::ended() {
  if (!done_.load(std::memory_order_acquire) || read_ != written_.load(std::memory_order_acquire))
    return false;
  records_.reset(), tops_.reset();
  share_.give_back();
  return true;
}

void TokenStream::cancel() {
  if (done_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mailbox_->mutex);
  mailbox_->cancels.push_back(seq_);
  mailbox_->attention = true;
  mailbox_->wake.notify_one();
}

void TokenStream::append(std::span<const sample::Pick> picks, int64_t time_us) {
  uint32_t i = written_.load(std::memory_order_relaxed);
  TALLY_CHECK(picks.size() <= records_max_ - i, "more tokens than the stream has room for", i, picks.size());
  for (const sample::Pick& pick : picks) {
    const auto top = std::min(top_, pick.top_count);
    const uint64_t stamp =
        static_cast<uint64_t>(time_us) << kTimeShift | uint64_t{pick.is_end} << kEndShift | top;
    std::construct_at(record(i), Record{pick.id, pick.logprob, stamp});
    std::uninitialized_copy_n(pick.top.begin(), top, tops(i));
    ++i;
  }
  share_.use(bytes_in_use(i, top_));
  written_.store(i, std::memory_order_release);
}

void TokenStream::end(Finish finish, const Receipt& receipt) {
  finish_ = finish;
  receipt_ = receipt;
  share_.settle();
  done_.store(true, std::memory_order_release);
}

void TokenStream::notify() const {
  if (notify_) notify_();
}

}  // namespace tally::engine
