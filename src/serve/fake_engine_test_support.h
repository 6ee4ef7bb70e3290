#pragma once
// An engine without a model: deterministic tokens at a given pace, with refusals and failures on demand.

#include "base/clock.h"
#include "engine/engine.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tally::serve {

// One sequence. The ring is a vector under a lock: exactness matters here, speed does not.
class FakeStream final : public engine::Stream {
 public:
  FakeStream(engine::Request r, uint32_t c) : request(std::move(r)), choice(c) {}

  bool next(engine::TokenEvent& event) override {
    const std::lock_guard lock(mutex);
    if (read == events.size()) return false;
    event = events[read++];
    return true;
  }
  // Of the token at `position`: log-probability -position / 4, rank `position`, and of its best ones the last
  // is itself.
  bool score(uint32_t position, sample::Score& score) const override {
    const std::lock_guard lock(mutex);
    if (request.prompt_logprobs < 0 || (events.empty() && !done)) return false;
    if (position == 0 || position >= request.prompt.size()) return false;
    score = {.logprob = -0.25f * static_cast<float>(position), .rank = position};
    score.top_count = static_cast<uint8_t>(request.prompt_logprobs);
    for (uint8_t k = 0; k < score.top_count; ++k) {
      const int32_t away = score.top_count - 1 - k;
      score.top[k] = {static_cast<TokenId>((raw(request.prompt[position]) + away) % 1024),
                      score.logprob + 0.125f * static_cast<float>(away)};
    }
    return true;
  }
  bool ended() override {
    const std::lock_guard lock(mutex);
    return done && read == events.size();
  }
  engine::Finish finish() const override { return why; }
  const engine::Receipt& receipt() const override { return account; }
  void cancel() override { cancelled.store(true); }

  const engine::Request request;
  const uint32_t choice;  // of its prompt
  std::atomic<bool> cancelled{false};
  mutable std::mutex mutex;
  std::vector<engine::TokenEvent> events;  // guarded by mutex, as the rest
  size_t read = 0;
  bool done = false;
  engine::Finish why = engine::Finish::kStop;
  engine::Receipt account;
};

inline constexpr uint64_t kAnswerBytesMax = 100'000;

struct FakeOptions {
  uint32_t max_model_len = 512, max_seqs = 64, max_queue = 256, vocab_size = 1024;
  uint32_t at_once = 64;       // sequences; another bound than max_seqs, as --step-tokens can be
  uint32_t cached_tokens = 0;  // of every prompt
  int64_t step_us = 200;
  // Token `i` after a prompt; default: ids of ordinary text, in a cycle that depends on the prompt's length,
  // and, unless greedy, on the choice.
  std::function<TokenId(const std::vector<TokenId>& prompt, size_t i)> next;
  // Log-probability of token `i` of a choice; default: -(i + 1) / 8.
  std::function<float(uint32_t choice, size_t i)> logprob;
  TokenId end_id{2};
  // Ends a sequence with `why` before its `fail_at`-th token.
  std::optional<engine::Finish> fail_with;
  size_t fail_at = 0;
};

class FakeEngine final : public engine::Engine {
 public:
  explicit FakeEngine(FakeOptions options) : options_(std::move(options)) {
    info_ = {.vocab_size = options_.vocab_size,
             .max_model_len = options_.max_model_len,
             .max_seqs = options_.max_seqs,
             .block_tokens = 16,
             .blocks = 64,
             .kv_type = "f32",
             .isa = "scalar",
             .model_fingerprint = std::string(64, 'a'),
             .tuning = {}};
    info_.answer_bytes_max = kAnswerBytesMax;
  }

  engine::Submitted submit(engine::Request request) override {
    const std::lock_guard lock(mutex_);
    const uint64_t needed =
        request.prompt.size() + (request.prompt_only ? 0 : std::max(request.max_tokens, 1u));
    const uint32_t side_by_side = request.beams ? request.beams->width : request.choices;
    if (stopping_) return {.streams = {}, .refused = {.why = engine::Refusal::kStopping, .retry_after_s = 5}};
    if (side_by_side > options_.at_once)
      return {.streams = {},
              .refused = {.why = engine::Refusal::kTooManyChoices,
                          .needed = side_by_side,
                          .available = options_.at_once}};
    if (needed > info_.max_model_len)
      return {
          .streams = {},
          .refused = {
              .why = engine::Refusal::kContextLength, .needed = needed, .available = info_.max_model_len}};
    if (pool_too_small.load())
      return {.streams = {},
              .refused = {.why = engine::Refusal::kPoolTooSmall, .needed = 143, .available = 120}};
    if (live_.size() >= options_.max_queue)
      return {.streams = {}, .refused = {.why = engine::Refusal::kQueueFull, .retry_after_s = 7}};
    engine::Submitted submitted;
    submitted.answer_bytes = uint64_t{request.choices} * request.max_tokens;
    const uint64_t room = answer_room.load();
    if (submitted.answer_bytes > room) {
      submitted.refused = {
          .why = engine::Refusal::kAnswersFull, .needed = submitted.answer_bytes, .available = room};
      submitted.refused.retry_after_s = 7;
      return submitted;
    }
    answer_room = room - submitted.answer_bytes;
    for (uint32_t c = 0; c < request.choices; ++c) {
      auto stream = std::make_shared<FakeStream>(request, c);
      stream->account.arrived_us = request.arrived_us;
      stream->account.queued_us = base::now_us();
      stream->account.seed = request.params.seed;
      stream->account.prompt_tokens = static_cast<uint32_t>(request.prompt.size());
      stream->account.cached_tokens = options_.cached_tokens;
      live_.push_back(stream);
      submitted.streams.push_back(std::move(stream));
    }
    last_request = std::move(request);
    last_request.notify = nullptr;
    wake_.notify_one();
    return submitted;
  }

  base::Result<void> run() override {
    std::unique_lock lock(mutex_);
    while (!(stopping_ && live_.empty())) {
      if (live_.empty()) {
        wake_.wait_for(lock, std::chrono::milliseconds(20));
        continue;
      }
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(options_.step_us));
      lock.lock();
      const std::vector<std::shared_ptr<FakeStream>> present = live_;
      lock.unlock();
      std::vector<std::shared_ptr<FakeStream>> done;  // never one lock inside the other
      for (const auto& stream : present) {
        step(*stream);
        const std::lock_guard inner(stream->mutex);
        if (stream->done) done.push_back(stream);
      }
      lock.lock();
      std::erase_if(live_, [&](const auto& stream) {
        return std::find(done.begin(), done.end(), stream) != done.end();
      });
    }
    return {};
  }

  void stop(int64_t deadline_us) override {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    deadline_us_ = std::min(deadline_us_, deadline_us);
    wake_.notify_one();
  }

  engine::Stats stats() const override {
    static constexpr std::array<double, 3> kEdges = {0.001, 0.1, 1};
    const std::lock_guard lock(mutex_);
    engine::Stats stats = counts_;
    for (engine::Histogram* h : {&stats.ttft,
                                 &stats.inter_token,
                                 &stats.time_per_output_token,
                                 &stats.e2e,
                                 &stats.queue,
                                 &stats.prefill,
                                 &stats.decode,
                                 &stats.inference,
                                 &stats.prompt_tokens_per_request,
                                 &stats.generation_tokens_per_request,
                                 &stats.iteration_tokens,
                                 &stats.step_prefill,
                                 &stats.step_decode,
                                 &stats.step_mixed,
                                 &stats.prefill_computed,
                                 &stats.prefill_per_token,
                                 &stats.step_model_error,
                                 &stats.block_lifetime,
                                 &stats.block_idle,
                                 &stats.block_reuse_gap}) {
      h->edges = kEdges;
      h->counts.assign(kEdges.size() + 1, 0);
    }
    stats.ttft.counts[1] = counts_.finished[0];
    stats.running = live_.size();
    stats.waiting = waiting;
    stats.blocks_total = info_.blocks;
    stats.blocks_free = info_.blocks;
    stats.last_step_us = base::now_us();
    return stats;
  }
  const engine::Info& info() const override { return info_; }
  uint64_t reset_prefix_cache() override { return 3; }
  engine::KvEvents kv_events(uint64_t since, size_t max) const override {
    engine::KvEvents some = all_events;
    some.dropped = since + 1 < some.first;
    std::erase_if(some.events, [&](const engine::KvEvent& e) { return e.sequence <= since; });
    some.events.resize(std::min(some.events.size(), max));
    return some;
  }
  engine::BlockMap block_map() const override { return map; }
  engine::StepPage steps(uint64_t since, size_t max) const override { return step_log.read(since, max); }

  size_t live() const {
    const std::lock_guard lock(mutex_);
    return live_.size();
  }

  std::atomic<bool> frozen{false};  // no sequence advances, though cancels and deadlines are seen
  std::atomic<bool> pool_too_small{false};
  // Of answers, a byte a token; what is taken does not come back.
  std::atomic<uint64_t> answer_room{UINT64_MAX};
  std::atomic<uint64_t> cancels{0}, waiting{0};
  engine::Request last_request;  // read it when nothing is being submitted
  engine::KvEvents all_events;   // these two are set before requests come
  engine::BlockMap map;
  engine::StepLog step_log;

 private:
  TokenId token(const FakeStream& stream, size_t i) const {
    if (options_.next) return options_.next(stream.request.prompt, i);
    constexpr int kFirstText = 300, kTexts = 600;
    const size_t choice = stream.request.params.temperature == 0 ? 0 : stream.choice;
    const size_t at = stream.request.prompt.size() * 37 + i * 11 + choice * 101;
    return static_cast<TokenId>(kFirstText + static_cast<int>(at % kTexts));
  }

  void end(FakeStream& stream, engine::Finish why) {
    const int64_t now_us = base::now_us();
    stream.done = true;
    stream.why = why;
    engine::Receipt& r = stream.account;
    r.last_us = now_us;
    const auto seconds = [](int64_t us) { return static_cast<double>(us) * 1e-6; };
    const bool begun = r.scheduled_us != 0;  // its first token ends prefill at once
    r.queue_s = seconds((begun ? r.scheduled_us : now_us) - r.queued_us);
    r.prefill_s = begun ? seconds(r.first_token_us - r.scheduled_us) : 0;
    r.decode_s = begun ? seconds(r.last_us - r.first_token_us) : 0;
    r.generated_tokens = static_cast<uint32_t>(stream.events.size());
    if (why == engine::Finish::kCancelled) ++cancels;
  }

  void step(FakeStream& stream) {
    {
      const std::lock_guard lock(stream.mutex);
      const int64_t now_us = base::now_us();
      const size_t i = stream.events.size();
      const engine::Request& request = stream.request;
      if (stream.cancelled.load()) {
        end(stream, engine::Finish::kCancelled);
      } else if (now_us > deadline()) {
        end(stream, engine::Finish::kShutdown);
      } else if (request.deadline_us > 0 && now_us > request.deadline_us) {
        end(stream, engine::Finish::kDeadline);
      } else if (options_.fail_with && i >= options_.fail_at) {
        end(stream, *options_.fail_with);
      } else if (!frozen.load()) {
        advance(stream, i, now_us);
        while (request.beams && !stream.done) advance(stream, stream.events.size(), now_us);
      } else {
        return;
      }
    }
    {
      const std::lock_guard lock(mutex_);
      if (stream.done) ++counts_.finished[static_cast<size_t>(stream.why)];
    }
    stream.request.notify();
  }

  void advance(FakeStream& stream, size_t i, int64_t now_us) {
    const engine::Request& request = stream.request;
    if (request.prompt_only) {
      stream.account.scheduled_us = stream.account.first_token_us = now_us;
      return end(stream, engine::Finish::kLength);
    }
    engine::TokenEvent event;
    event.id = token(stream, i);
    const auto& own = request.params.stop_ids;
    event.is_end = (event.id == options_.end_id && !request.params.ignore_eos) ||
                   std::find(own.begin(), own.end(), event.id) != own.end();
    event.time_us = now_us;
    if (request.params.logprobs >= 0) {
      event.logprob =
          options_.logprob ? options_.logprob(stream.choice, i) : -0.125f * static_cast<float>(i + 1);
      event.top_count = static_cast<uint8_t>(request.params.logprobs);
      for (int k = 0; k < request.params.logprobs; ++k)
        event.top[static_cast<size_t>(k)] = {
            static_cast<TokenId>((raw(event.id) + k) % static_cast<int>(options_.vocab_size)),
            k == 19 ? -INFINITY : event.logprob - static_cast<float>(k)};
    }
    if (stream.account.scheduled_us == 0) stream.account.scheduled_us = now_us;
    if (stream.account.first_token_us == 0) stream.account.first_token_us = now_us;
    stream.events.push_back(event);
    const size_t room = info_.max_model_len - request.prompt.size();
    const size_t most = request.max_tokens > 0 ? std::min<size_t>(request.max_tokens, room) : room;
    if (event.is_end)
      end(stream, engine::Finish::kStop);
    else if (i + 1 >= most)
      end(stream, engine::Finish::kLength);
  }

  int64_t deadline() const {
    const std::lock_guard lock(mutex_);
    return deadline_us_;
  }

  const FakeOptions options_;
  engine::Info info_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<FakeStream>> live_;
  engine::Stats counts_;
  bool stopping_ = false;
  int64_t deadline_us_ = INT64_MAX;
};

}  // namespace tally::serve
