#include "engine/stream.h"

#include "base/check.h"

#include <algorithm>

namespace tally::engine {

namespace {

// Whole pages, as they are touched.
uint64_t in_pages(uint64_t bytes) {
  constexpr uint64_t kPage = 4096;
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

PromptScores::PromptScores(uint32_t last, uint8_t top)
    : last_(last),
      top_(top),
      records_(std::make_unique_for_overwrite<std::byte[]>(size_t{last} * sizeof(Record))),
      tops_(std::make_unique_for_overwrite<std::byte[]>(size_t{last} * top * sizeof(sample::TokenLogprob))) {}

uint64_t PromptScores::bytes(uint32_t last, uint8_t top) {
  return last * (sizeof(Record) + size_t{top} * sizeof(sample::TokenLogprob)) + sizeof(PromptScores);
}

uint64_t PromptScores::bytes_in_use() const {
  const uint64_t written = written_.load(std::memory_order_relaxed);
  return in_pages(written * sizeof(Record)) + in_pages(written * top_ * sizeof(sample::TokenLogprob)) +
         sizeof(PromptScores);
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

TokenStream::TokenStream(SeqId seq, uint32_t tokens_max, uint8_t top, std::shared_ptr<Mailbox> mailbox,
                         std::function<void()> notify, std::shared_ptr<const PromptScores> scores)
    : seq_(seq),
      top_(top),
      mailbox_(std::move(mailbox)),
      notify_(std::move(notify)),
      scores_(std::move(scores)),
      records_max_(tokens_max),
      records_(std::make_unique_for_overwrite<std::byte[]>(size_t{tokens_max} * sizeof(Record))),
      tops_(std::make_unique_for_overwrite<std::byte[]>(size_t{tokens_max} * top *
                                                        sizeof(sample::TokenLogprob))) {}

uint64_t TokenStream::bytes(uint32_t tokens_max, uint8_t top) {
  return tokens_max * token_bytes(top) + sizeof(TokenStream);
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
  event.id = r.id, event.is_end = r.is_end, event.logprob = r.logprob, event.time_us = r.time_us;
  event.top_count = r.top_count;
  std::copy_n(tops(read_), r.top_count, event.top.begin());
  ++read_;
  return true;
}

bool TokenStream::ended() const {
  return done_.load(std::memory_order_acquire) && read_ == written_.load(std::memory_order_acquire);
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
    std::construct_at(record(i), Record{pick.id, pick.logprob, time_us, pick.is_end, top});
    std::uninitialized_copy_n(pick.top.begin(), top, tops(i));
    ++i;
  }
  written_.store(i, std::memory_order_release);
}

void TokenStream::end(Finish finish, const Receipt& receipt) {
  finish_ = finish;
  receipt_ = receipt;
  done_.store(true, std::memory_order_release);
}

void TokenStream::notify() const {
  if (notify_) notify_();
}

}  // namespace tally::engine
