#include "engine/stream.h"

#include "base/check.h"

#include <algorithm>

namespace tally::engine {

TokenStream::TokenStream(SeqId seq, uint32_t tokens_max, uint8_t top, std::shared_ptr<Mailbox> mailbox,
                         std::function<void()> notify)
    : seq_(seq),
      top_(top),
      mailbox_(std::move(mailbox)),
      notify_(std::move(notify)),
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
  constexpr uint64_t kPage = 4096;
  const auto pages = [](uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; };
  return pages(tokens * sizeof(Record)) + pages(tokens * top * sizeof(sample::TokenLogprob)) +
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
