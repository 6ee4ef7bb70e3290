// Several sequences from one prompt: choices equal to requests of their own, beams to a search over whole
// requests.
#include "engine/hand_test_support.h"

#include <algorithm>
#include <cmath>

namespace tally::engine {
namespace {

Request sampled(uint32_t tokens, uint32_t length, uint64_t seed) {
  Request r = greedy(prompt(length, 11), tokens);
  r.params.temperature = 1;
  r.params.seed = seed;
  return r;
}

// What each choice would be as a request of its own.
std::vector<Answer> one_by_one(const Request& request, const LoadRequest& load) {
  std::vector<Answer> answers;
  for (uint32_t c = 0; c < request.choices; ++c) {
    Request one = request;
    one.choices = 1;
    one.first_choice = request.first_choice + c;
    answers.push_back(Hand(load).run({one}).at(0));
  }
  return answers;
}

TEST(Choices, EqualRequestsOfTheirOwn) {
  for (const uint32_t length : {1u, 15u, 16u, 17u, 40u}) {
    Request r = sampled(20, length, 9);
    r.choices = 5;
    const std::vector<Answer> wanted = one_by_one(r, small_request());
    EXPECT_NE(wanted[0].ids, wanted[1].ids);
    struct Variant {
      const char* name;
      void (*change)(Settings&);
    };
    const Variant variants[] = {
        {"as it is", [](Settings&) {}},
        {"prefix cache off", [](Settings& s) { s.prefix_cache = false; }},
        {"chunks of 8", [](Settings& s) { s.step_tokens = 8; }},
        {"int8", [](Settings& s) { s.kv_type = "int8"; }},
        {"static", [](Settings& s) { s.policy.batching = "static"; }},
        {"reserve", [](Settings& s) { s.policy.allocator = "reserve"; }},
        {"a bound for steps", [](Settings& s) { s.policy.step_latency_us = 1000; }},
        {"small pool", [](Settings& s) { s.kv_pool_bytes = 1; }},  // replaced below
    };
    for (const Variant& variant : variants) {
      LoadRequest load = small_request();
      variant.change(load.settings);
      const bool int8 = load.settings.kv_type == "int8";
      if (load.settings.kv_pool_bytes == 1)
        load.settings.kv_pool_bytes = 16 * plan_memory(small_request()).value().kv_bytes_per_token * 16;
      Hand hand(load);
      const std::vector<Answer> got = hand.run({r, sampled(7, 30, 1)});
      ASSERT_EQ(got.size(), 6u) << variant.name;
      const std::vector<Answer> same_codec = int8 ? one_by_one(r, load) : wanted;
      for (size_t c = 0; c < 5; ++c)
        EXPECT_EQ(got[c], same_codec[c]) << variant.name << ", prompt of " << length << ", choice " << c;
      EXPECT_EQ(hand.engine->stats().blocks_held, 0u) << variant.name;
    }
  }
}

TEST(Choices, ThePromptIsComputedOnce) {
  Hand hand(small_request());
  Request r = sampled(10, 40, 3);
  r.choices = 8;
  const std::vector<Answer> answers = hand.run({r});
  const Stats stats = hand.engine->stats();
  EXPECT_EQ(stats.rows_prefill, 40u);
  EXPECT_EQ(stats.prompt_tokens, 40u);
  EXPECT_EQ(stats.generation_tokens, 80u);
  EXPECT_EQ(stats.forks, 7u);
  EXPECT_EQ(stats.copied_blocks, 7u);
  for (const Answer& a : answers) {
    const Receipt& t = a.receipt;
    const double wall = static_cast<double>(t.last_us - t.queued_us) * 1e-6;
    EXPECT_NEAR(t.queue_s + t.prefill_s + t.stalled_s + t.decode_s + t.sample_s, wall, 1e-4 + wall * 1e-3);
    EXPECT_EQ(t.generated_tokens, 10u);
    EXPECT_EQ(t.prompt_tokens, 40u);
  }
}

TEST(Choices, TooManyAreRefusedWithTheArithmetic) {
  Hand hand(small_request());
  Request r = sampled(1, 4, 3);
  r.choices = 9;
  const Submitted s = hand.engine->submit(r);
  EXPECT_TRUE(s.streams.empty());
  EXPECT_EQ(s.refused.why, Refusal::kTooManyChoices);
  EXPECT_EQ(s.refused.needed, 9u);
  EXPECT_EQ(s.refused.available, 8u);
}

// The queue has seats left, but the answers of its requests would have no room.
TEST(Choices, RoomForAnswersIsBounded) {
  LoadRequest load = small_request();
  load.settings.max_queue = 1000;
  Hand hand(load);
  Request r = sampled(0, 4, 3);
  r.choices = 8;
  r.params.logprobs = 20;
  std::vector<std::shared_ptr<Stream>> streams;
  for (int i = 0; i < 100; ++i) {
    const Submitted s = hand.engine->submit(r);
    if (s.streams.empty()) {
      EXPECT_EQ(s.refused.why, Refusal::kAnswersFull);
      break;
    }
    streams.insert(streams.end(), s.streams.begin(), s.streams.end());
  }
  EXPECT_GE(streams.size(), 16u);
  EXPECT_LT(streams.size(), 800u);
  for (const auto& stream : streams) stream->cancel();
  streams.clear();
  hand.loop->step();
  EXPECT_EQ(hand.engine->submit(r).streams.size(), 8u) << "room comes back";
}

TEST(Choices, OneCancelledLeavesTheOthers) {
  const Request one = sampled(12, 40, 5);
  Request r = one;
  r.choices = 3;
  const std::vector<Answer> wanted = one_by_one(r, small_request());
  for (int steps = 0; steps < 4; ++steps) {
    LoadRequest load = small_request();
    load.settings.step_tokens = 16;  // the prompt takes three
    Hand hand(load);
    const std::vector<std::shared_ptr<Stream>> streams = hand.engine->submit(r).streams;
    for (int i = 0; i < steps; ++i) hand.loop->step();
    streams[0]->cancel();
    std::vector<Answer> got(3);
    for (int i = 0; i < 100; ++i) {
      hand.loop->step();
      for (size_t c = 0; c < 3; ++c) drain(*streams[c], got[c]);
    }
    EXPECT_EQ(got[0].finish, Finish::kCancelled) << steps;
    EXPECT_EQ(got[1], wanted[1]) << steps;
    EXPECT_EQ(got[2], wanted[2]) << steps;
    EXPECT_EQ(hand.engine->stats().blocks_held, 0u) << steps;
  }
}

// Beam search over whole requests: the log-probability of a token after a sequence is asked for as that of a
// request with the sequence as its prompt. Nothing of the engine's bookkeeping takes part.
struct Candidate {
  std::vector<TokenId> ids;
  double cumulative = 0, score = 0;
};

std::vector<Candidate> search(Hand& hand, const Request& request, uint32_t width, size_t length) {
  std::vector<Candidate> live(1);
  while (live[0].ids.size() < length) {
    std::vector<Candidate> all;
    for (const Candidate& beam : live) {
      Request one = request;
      one.prompt.insert(one.prompt.end(), beam.ids.begin(), beam.ids.end());
      one.max_tokens = 1;
      one.params.logprobs = 20;
      const std::shared_ptr<Stream> stream = hand.engine->submit(one).streams.at(0);
      TokenEvent event;
      while (!stream->next(event)) hand.loop->step();
      while (!stream->ended()) hand.loop->step();
      for (size_t i = 0; i < event.top_count; ++i) {
        all.push_back(beam);
        all.back().ids.push_back(event.top[i].id);
        all.back().cumulative += static_cast<double>(event.top[i].logprob);
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Candidate& a, const Candidate& b) { return a.cumulative > b.cumulative; });
    all.resize(width);
    live = all;
  }
  for (Candidate& c : live) c.score = c.cumulative / static_cast<double>(length);
  return live;
}

TEST(Beams, EqualASearchOverWholeRequests) {
  for (const uint32_t length : {13u, 32u}) {
    Request r = greedy(prompt(length, 21), 9);
    Hand hand(small_request());
    const std::vector<Candidate> wanted = search(hand, r, 4, 9);
    r.beams = BeamSearch{.width = 4};
    r.choices = 3;
    const uint64_t computed = hand.engine->stats().rows_prefill;
    ASSERT_GT(hand.engine->reset_prefix_cache(), 0u);
    const std::vector<Answer> got = hand.run({r, sampled(9, 20, 2)});
    EXPECT_EQ(hand.engine->stats().rows_prefill - computed, length + 20) << "the prompt is computed once";
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(got[i].ids, wanted[i].ids) << "rank " << i;
      EXPECT_EQ(got[i].finish, Finish::kLength);
      EXPECT_NEAR(got[i].receipt.cumulative_logprob, wanted[i].cumulative, 1e-4);
    }
    // With each token the best of its row, as a request says them that begins there.
    constexpr size_t kTold = 3;
    ASSERT_EQ(got[1].logprobs.size(), got[1].ids.size() * (1 + kTold));
    for (size_t k = 0; k < got[1].ids.size(); ++k) {
      Request there = greedy(r.prompt, 1);
      const auto before = std::span(got[1].ids).first(k);
      there.prompt.insert(there.prompt.end(), before.begin(), before.end());
      const std::vector<float> said = hand.run({there}).at(0).logprobs;
      for (size_t t = 1; t <= kTold; ++t) EXPECT_EQ(got[1].logprobs[k * (1 + kTold) + t], said[t]) << k;
    }
    EXPECT_EQ(hand.engine->stats().blocks_held, 0u);
  }
}

TEST(Beams, EndTokensFinishBeamsAndTheSearch) {
  LoadRequest load = small_request();
  for (int32_t id = 0; id < 1024; id += 5) load.end_ids.push_back(TokenId{id});
  for (const sample::EarlyStop early :
       {sample::EarlyStop::kPresent, sample::EarlyStop::kWidth, sample::EarlyStop::kLongest}) {
    Hand hand(load);
    Request r = greedy(prompt(20, 4), 40);
    // Without the penalty for length short ones have the better score, and many tokens end.
    r.beams = BeamSearch{.width = 3, .length_penalty = 0, .early_stopping = early};
    r.choices = 3;
    const std::vector<Answer> got = hand.run({r});
    EXPECT_EQ(got[0].finish, Finish::kStop);
    double before = INFINITY;
    for (const Answer& a : got) {
      EXPECT_LE(static_cast<double>(a.receipt.cumulative_logprob), before);
      before = static_cast<double>(a.receipt.cumulative_logprob);
      EXPECT_EQ(raw(a.ids.back()) % 5 == 0, a.finish == Finish::kStop);
    }
    EXPECT_EQ(hand.engine->stats().blocks_held, 0u);
  }
}

TEST(Beams, CancelEndsAllOfThem) {
  Hand hand(small_request());
  Request r = greedy(prompt(20, 4), 60);
  r.beams = BeamSearch{.width = 4};
  r.choices = 2;
  const std::vector<std::shared_ptr<Stream>> streams = hand.engine->submit(r).streams;
  for (int i = 0; i < 5; ++i) hand.loop->step();
  streams[1]->cancel();
  hand.loop->step();
  for (const auto& stream : streams) {
    Answer answer;
    ASSERT_TRUE(drain(*stream, answer));
    EXPECT_EQ(answer.finish, Finish::kCancelled);
    EXPECT_TRUE(answer.ids.empty());
  }
  EXPECT_EQ(hand.engine->stats().blocks_held, 0u);
}

}  // namespace
}  // namespace tally::engine
