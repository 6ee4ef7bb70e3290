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
      records_(tokens_max),
      tops_(size_t{tokens_max} * top) {}

uint64_t TokenStream::bytes(uint32_t tokens_max, uint8_t top) {
  return uint64_t{tokens_max} * (sizeof(Record) + size_t{top} * sizeof(sample::TokenLogprob)) +
         sizeof(TokenStream);
}

bool TokenStream::next(TokenEvent& event) {
  if (read_ == written_.load(std::memory_order_acquire)) return false;
  const Record& r = records_[read_];
  event.id = r.id, event.is_end = r.is_end, event.logprob = r.logprob, event.time_us = r.time_us;
  event.top_count = r.top_count;
  std::copy_n(tops_.begin() + static_cast<std::ptrdiff_t>(size_t{read_} * top_), r.top_count,
              event.top.begin());
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

void TokenStream::append(const sample::Pick& pick, int64_t time_us) {
  const uint32_t i = written_.load(std::memory_order_relaxed);
  TALLY_CHECK(i < records_.size(), "more tokens than the stream has room for", i);
  const auto top = std::min(top_, pick.top_count);
  records_[i] = {pick.id, pick.logprob, time_us, pick.is_end, top};
  std::copy_n(pick.top.begin(), top, tops_.begin() + static_cast<std::ptrdiff_t>(size_t{i} * top_));
  written_.store(i + 1, std::memory_order_release);
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
