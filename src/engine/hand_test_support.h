#pragma once
// An engine on a tiny real model, driven by hand, and requests for it. Test support, not in the product.

#include "engine/loop.h"
#include "engine/memory.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace tally::engine {

inline constexpr const char* kModel = "tests/golden/tiny/tiny-q-q4_0.gguf";

inline LoadRequest small_request() {
  LoadRequest request;
  request.model_path = kModel;
  request.settings.memory_bytes = uint64_t{512} << 20;
  request.settings.max_model_len = 128;
  request.settings.block_tokens = 16;
  request.settings.max_seqs = 8;
  request.settings.max_queue = 32;
  request.settings.step_tokens = 64;
  request.settings.threads = 2;
  request.settings.kv_pool_bytes = uint64_t{16} << 20;  // no preemption unless a test wants it
  return request;
}

inline std::vector<TokenId> prompt(size_t n, uint32_t seed) {
  std::vector<TokenId> ids;
  for (size_t i = 0; i < n; ++i) {
    seed = seed * 1664525u + 1013904223u;
    ids.push_back(TokenId{static_cast<int32_t>((seed >> 10) % 1024)});
  }
  return ids;
}

inline Request greedy(std::vector<TokenId> ids, uint32_t tokens) {
  Request r;
  r.prompt = std::move(ids);
  r.params.temperature = 0;
  r.params.logprobs = 3;
  r.max_tokens = tokens;
  return r;
}

struct Answer {
  std::vector<TokenId> ids;
  std::vector<float> logprobs;
  Finish finish = Finish::kInternal;
  Receipt receipt;
  bool operator==(const Answer& o) const {
    return ids == o.ids && logprobs == o.logprobs && finish == o.finish;
  }
};

// Takes what there is; true once the stream has ended.
inline bool drain(Stream& stream, Answer& answer) {
  TokenEvent event;
  while (stream.next(event)) {
    answer.ids.push_back(event.id);
    answer.logprobs.push_back(event.logprob);
    for (size_t i = 0; i < event.top_count; ++i) answer.logprobs.push_back(event.top[i].logprob);
  }
  if (!stream.ended()) return false;
  answer.finish = stream.finish();
  answer.receipt = stream.receipt();
  return true;
}

// An engine driven by hand, step by step.
struct Hand {
  base::Accounts accounts;
  std::unique_ptr<Engine> engine;
  Loop* loop = nullptr;

  explicit Hand(const LoadRequest& request) : accounts(request.settings.memory_bytes) {
    auto loaded = load_engine(request, accounts);
    EXPECT_TRUE(loaded) << (loaded ? "" : loaded.error().message);
    engine = std::move(loaded).value();
    loop = static_cast<Loop*>(engine.get());
  }

  // One answer for each choice of each request.
  std::vector<Answer> run(const std::vector<Request>& requests) {
    std::vector<std::shared_ptr<Stream>> streams;
    for (const Request& r : requests) {
      const Submitted s = engine->submit(r);
      EXPECT_EQ(s.streams.size(), r.choices);
      streams.insert(streams.end(), s.streams.begin(), s.streams.end());
    }
    std::vector<Answer> answers(streams.size());
    for (int step = 0; step < 10'000; ++step) {
      loop->step();
      bool all = true;
      for (size_t i = 0; i < streams.size(); ++i) all &= drain(*streams[i], answers[i]);
      if (all) return answers;
    }
    ADD_FAILURE() << "the engine does not end";
    return answers;
  }
};

}  // namespace tally::engine
