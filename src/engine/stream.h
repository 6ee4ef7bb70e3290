#pragma once
// One sequence's answer: written by the engine thread, read by one connection thread, no lock between them.
// Room for every token is taken at submit, so a slow reader never stalls a step.

#include "base/ids.h"
#include "engine/engine.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

namespace tally::engine {

// What other threads leave for the engine thread. Outlives the engine: streams hold it.
struct Mailbox {
  std::mutex mutex;  // the submit queue's: also guards the scheduler outside forward
  std::condition_variable wake;
  std::vector<SeqId> cancels;  // guarded by mutex
  bool attention = false;      // guarded by mutex: something arrived since the engine looked
};

class TokenStream final : public Stream {
 public:
  // Room for `tokens_max` events and, with `top` > 0, as many best lists.
  TokenStream(SeqId seq, uint32_t tokens_max, uint8_t top, std::shared_ptr<Mailbox> mailbox,
              std::function<void()> notify);

  bool next(TokenEvent& event) override;
  bool ended() const override;
  Finish finish() const override { return finish_; }
  const Receipt& receipt() const override { return receipt_; }
  void cancel() override;

  // Engine thread only.
  void append(const sample::Pick& pick, int64_t time_us);
  void end(Finish finish, const Receipt& receipt);
  void notify() const;

  static uint64_t bytes(uint32_t tokens_max, uint8_t top);

 private:
  struct Record {
    TokenId id{};
    float logprob = 0;
    int64_t time_us = 0;
    bool is_end = false;
    uint8_t top_count = 0;
  };
  const SeqId seq_;
  const uint8_t top_;
  const std::shared_ptr<Mailbox> mailbox_;
  const std::function<void()> notify_;

  // Filled by the engine thread up to written_, read by the reader up to it.
  std::vector<Record> records_;
  std::vector<sample::TokenLogprob> tops_;  // [records][top_]
  std::atomic<uint32_t> written_{0};
  uint32_t read_ = 0;              // reader only
  Finish finish_ = Finish::kStop;  // published by done_
  Receipt receipt_;                // published by done_
  std::atomic<bool> done_{false};
};

}  // namespace tally::engine
