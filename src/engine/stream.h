#pragma once
// One sequence's answer: written by the engine thread, read by one connection thread, no lock between them.
// Room for every token is taken at submit, so a slow reader never stalls a step; it holds it until it has
// taken the last one, or lets go of the stream.

#include "base/ids.h"
#include "engine/engine.h"
#include "engine/stream_room.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
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

// The scores of one prompt, which all of its choices have: of positions 1 to `last`, each with room for `top`
// best ones.
class PromptScores {
 public:
  PromptScores(uint32_t last, uint8_t top, std::shared_ptr<StreamRoom> room = nullptr);

  bool read(uint32_t position, sample::Score& score) const;
  uint8_t top() const { return top_; }

  // Different positions from different threads of the engine; read once they are published, in order.
  void put(uint32_t position, const sample::Score& score);
  void publish(uint32_t through);

  // Of all that it has room for, and of those pages that so many have touched.
  static uint64_t bytes(uint32_t last, uint8_t top) { return bytes_in_use(last, top); }
  static uint64_t bytes_in_use(uint64_t written, uint8_t top);

 private:
  struct Record {
    float logprob = 0;
    uint32_t rank = 0;
    uint8_t top_count = 0;
  };
  const uint32_t last_;
  const uint8_t top_;
  std::unique_ptr<std::byte[]> records_;  // [last_] of Record
  std::unique_ptr<std::byte[]> tops_;     // [last_][top_] of TokenLogprob
  std::atomic<uint32_t> written_{0};
  StreamShare share_;  // the engine thread's until the last to hold the scores lets go
};

// What a sequence's tokens are kept in.
struct StreamSize {
  uint32_t tokens_max = 0;
  uint8_t top = 0;  // best tokens told with each
};

class TokenStream final : public Stream {
 public:
  // Room for `tokens_max` events and, with `top` > 0, as many best lists. `scores` of the prompt: or null.
  // Requires: bytes() of them fit into `room`.
  TokenStream(SeqId seq, StreamSize size, std::shared_ptr<Mailbox> mailbox, std::function<void()> notify,
              std::shared_ptr<StreamRoom> room, std::shared_ptr<const PromptScores> scores = nullptr);

  bool next(TokenEvent& event) override;
  bool score(uint32_t position, sample::Score& score) const override {
    return scores_ && scores_->read(position, score);
  }
  bool ended() override;
  Finish finish() const override { return finish_; }
  const Receipt& receipt() const override { return receipt_; }
  void cancel() override;

  // Engine thread only.
  void append(const sample::Pick& pick, int64_t time_us) { append(std::span(&pick, 1), time_us); }
  // A reader sees all of them or none.
  void append(std::span<const sample::Pick> picks, int64_t time_us);
  void end(Finish finish, const Receipt& receipt);
  void notify() const;

  // Of all tokens that it has room for; of each; and of those pages that so many tokens have touched.
  static uint64_t bytes(uint64_t tokens_max, uint8_t top) { return bytes_in_use(tokens_max, top); }
  static uint64_t token_bytes(uint8_t top);
  static uint64_t bytes_in_use(uint64_t tokens, uint8_t top);

 private:
  struct Record {
    TokenId id{};
    float logprob = 0;
    uint64_t stamp = 0;  // time_us, is_end, top_count: see append
  };
  Record* record(size_t i) const { return reinterpret_cast<Record*>(records_.get()) + i; }
  sample::TokenLogprob* tops(size_t i) const {
    return reinterpret_cast<sample::TokenLogprob*>(tops_.get()) + i * top_;
  }

  const SeqId seq_;
  const uint8_t top_;
  const std::shared_ptr<Mailbox> mailbox_;
  const std::function<void()> notify_;
  const std::shared_ptr<const PromptScores> scores_;

  // Filled by the engine thread up to written_, read by the reader up to it. Pages behind it are untouched.
  const uint32_t records_max_;
  std::unique_ptr<std::byte[]> records_;  // [records_max_] of Record
  std::unique_ptr<std::byte[]> tops_;     // [records_max_][top_] of TokenLogprob
  std::atomic<uint32_t> written_{0};
  uint32_t read_ = 0;              // reader only
  Finish finish_ = Finish::kStop;  // published by done_
  Receipt receipt_;                // published by done_
  std::atomic<bool> done_{false};
  StreamShare share_;  // the engine thread's until done_, then the reader's
};

}  // namespace tally::engine
