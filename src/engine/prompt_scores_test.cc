// Scores of prompts: the bits of generation, whatever else runs and however the rows are cut.
#include "engine/hand_test_support.h"

#include <algorithm>

namespace tally::engine {
namespace {

constexpr int32_t kTop = 3;

Request scored(std::vector<TokenId> ids, uint32_t tokens) {
  Request r = greedy(std::move(ids), tokens);
  r.prompt_logprobs = kTop;
  return r;
}

Request alone(std::vector<TokenId> ids) {
  Request r = scored(std::move(ids), 0);
  r.prompt_only = true;
  return r;
}

// All scores of a stream: log-probability, rank, and the best.
std::vector<float> scores_of(const Stream& stream, size_t prompt_tokens) {
  std::vector<float> out;
  sample::Score score;
  for (uint32_t position = 1; position < prompt_tokens; ++position) {
    if (!stream.score(position, score)) return out;
    out.push_back(score.logprob);
    out.push_back(static_cast<float>(score.rank));
    for (size_t i = 0; i < score.top_count; ++i) {
      out.push_back(static_cast<float>(raw(score.top[i].id)));
      out.push_back(score.top[i].logprob);
    }
  }
  return out;
}

struct Scored {
  std::vector<float> scores;
  Answer answer;
  bool operator==(const Scored&) const = default;
};

// Scores must all be there with the first event.
std::vector<Scored> run_scored(Hand& hand, const std::vector<Request>& requests) {
  std::vector<std::shared_ptr<Stream>> streams;
  for (const Request& r : requests) streams.push_back(hand.engine->submit(r).streams.at(0));
  std::vector<Scored> out(streams.size());
  for (int step = 0; step < 10'000; ++step) {
    hand.loop->step();
    bool all = true;
    for (size_t i = 0; i < streams.size(); ++i) {
      const size_t before = out[i].answer.ids.size();
      const bool ended = drain(*streams[i], out[i].answer);
      if (before == 0 && (ended || !out[i].answer.ids.empty()))
        out[i].scores = scores_of(*streams[i], requests[i].prompt.size());
      all &= ended;
    }
    if (all) return out;
  }
  ADD_FAILURE() << "the engine does not end";
  return out;
}

size_t floats(size_t prompt_tokens) { return (prompt_tokens - 1) * (2 + 2 * size_t{kTop}); }

std::vector<Request> mixed_scored() {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 6; ++i) requests.push_back(scored(prompt(3 + 15 * i, 40 + i % 2), 40 + i));
  requests.push_back(alone(prompt(60, 41)));
  requests.push_back(greedy(prompt(30, 8), 30));
  requests[2].params.temperature = 1, requests[2].params.seed = 5;
  return requests;
}

// One a score and one a token, whatever was computed again.
uint64_t rows_with_logits(const std::vector<Request>& requests) {
  uint64_t rows = 0;
  for (const Request& r : requests) rows += (r.prompt_logprobs < 0 ? 0 : r.prompt.size() - 1) + r.max_tokens;
  return rows;
}

TEST(PromptScores, AreWhatGenerationTells) {
  Hand hand(small_request());
  const Request r = greedy(prompt(20, 3), 25);
  const Answer generated = hand.run({r}).at(0);
  Request again = alone(r.prompt);
  again.prompt.insert(again.prompt.end(), generated.ids.begin(), generated.ids.end());
  const auto stream = hand.engine->submit(again).streams.at(0);
  while (!stream->ended()) hand.loop->step();
  sample::Score score;
  for (uint32_t i = 0; i < generated.ids.size(); ++i) {
    ASSERT_TRUE(stream->score(20 + i, score)) << i;
    const size_t at = i * (1 + size_t{kTop});
    EXPECT_EQ(score.logprob, generated.logprobs[at]) << i;
    EXPECT_EQ(score.rank, 1u) << i;
    EXPECT_EQ(score.top[0].id, generated.ids[i]) << i;
    for (size_t t = 0; t < size_t{kTop}; ++t) EXPECT_EQ(score.top[t].logprob, generated.logprobs[at + 1 + t]);
  }
  EXPECT_FALSE(stream->score(0, score));
  EXPECT_FALSE(stream->score(45, score));
}

TEST(PromptScores, AloneBatchedChunkedAndPreemptedAreTheSameBits) {
  const std::vector<Request> requests = mixed_scored();
  std::vector<Scored> wanted;
  for (const Request& r : requests) {
    Hand hand(small_request());
    wanted.push_back(run_scored(hand, {r}).at(0));
    EXPECT_EQ(wanted.back().answer.finish, Finish::kLength);
    EXPECT_EQ(wanted.back().scores.size(), r.prompt_logprobs < 0 ? 0 : floats(r.prompt.size()));
  }
  struct Variant {
    const char* name;
    void (*change)(Settings&);
  };
  const Variant variants[] = {
      {"batch", [](Settings&) {}},
      {"step-tokens 8", [](Settings& s) { s.step_tokens = 8; }},
      {"threads 1", [](Settings& s) { s.threads = 1; }},
      {"block 64", [](Settings& s) { s.block_tokens = 64; }},
      {"max-seqs 2", [](Settings& s) { s.max_seqs = 2; }},
      {"max-seqs 30", [](Settings& s) { s.max_seqs = 30; }},
      {"prefix cache off", [](Settings& s) { s.prefix_cache = false; }},
      {"static", [](Settings& s) { s.policy.batching = "static"; }},
      {"reserve", [](Settings& s) { s.policy.allocator = "reserve"; }},
      {"a bound for steps", [](Settings& s) { s.policy.step_latency_us = 1000; }},
      {"scalar", [](Settings& s) { s.isa = "scalar"; }},
      {"small pool", [](Settings& s) { s.kv_pool_bytes = 1; }},  // replaced below by 9 blocks
  };
  for (const Variant& variant : variants) {
    LoadRequest load = small_request();
    variant.change(load.settings);
    const bool small_pool = load.settings.kv_pool_bytes == 1;
    if (small_pool)
      load.settings.kv_pool_bytes = 9 * plan_memory(small_request()).value().kv_bytes_per_token * 16;
    Hand hand(load);
    for (const char* time : {"first", "second"}) {  // with what the first has left in the index
      const std::vector<Scored> got = run_scored(hand, requests);
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_EQ(got[i], wanted[i]) << variant.name << ", " << time << " time, request " << i;
    }
    const Stats stats = hand.engine->stats();
    EXPECT_EQ(stats.blocks_held, 0u) << variant.name;
    if (small_pool) {
      EXPECT_GT(stats.preemptions, 0u) << "the pool was meant to be too small";
    }
    uint64_t rows = 0;
    for (const StepRecord& step : hand.engine->steps(0, SIZE_MAX).steps) {
      EXPECT_LE(step.logits_rows, load.settings.max_seqs) << variant.name;
      rows += step.logits_rows;
    }
    // And the last of the prompt alone, where it is in one chunk with others.
    EXPECT_GE(rows, 2 * rows_with_logits(requests)) << variant.name;
    EXPECT_LE(rows, 2 * rows_with_logits(requests) + 2) << variant.name << ": logits that nobody asked for";
  }
}

TEST(PromptScores, TheirBlocksAreSharedAfterwards) {
  Hand hand(small_request());
  const Scored cold = run_scored(hand, {scored(prompt(70, 5), 2)}).at(0);
  EXPECT_EQ(cold.answer.receipt.cached_tokens, 0u);
  const Scored again = run_scored(hand, {scored(prompt(70, 5), 2)}).at(0);
  EXPECT_EQ(again, cold);
  EXPECT_EQ(again.answer.receipt.cached_tokens, 0u);
  EXPECT_EQ(hand.engine->stats().prefix_queries, 0u);
  EXPECT_EQ(hand.run({greedy(prompt(70, 5), 2)}).at(0).receipt.cached_tokens, 64u);
}

TEST(PromptScores, APromptAloneMayFillTheContext) {
  Hand hand(small_request());
  const Scored full = run_scored(hand, {alone(prompt(128, 9))}).at(0);
  EXPECT_EQ(full.scores.size(), floats(128));
  EXPECT_EQ(full.answer.finish, Finish::kLength);
  EXPECT_TRUE(full.answer.ids.empty());
  const Receipt& r = full.answer.receipt;
  EXPECT_EQ(r.generated_tokens, 0u);
  const double wall = static_cast<double>(r.last_us - r.queued_us) * 1e-6;
  EXPECT_NEAR(r.queue_s + r.prefill_s + r.stalled_s + r.decode_s + r.sample_s, wall, 1e-4 + wall * 1e-3);
  const Stats stats = hand.engine->stats();
  EXPECT_EQ(stats.prompt_tokens, 128u);
  EXPECT_EQ(stats.generation_tokens, 0u);
  EXPECT_EQ(stats.blocks_held, 0u);
  const Refused refused = hand.engine->submit(alone(prompt(129, 9))).refused;
  EXPECT_EQ(refused.why, Refusal::kContextLength);
  EXPECT_EQ(refused.needed, 129u);
  Request one = alone(prompt(1, 9));  // nothing to score
  EXPECT_EQ(run_scored(hand, {one}).at(0).answer.finish, Finish::kLength);
}

TEST(PromptScores, ChoicesShareThem) {
  const std::vector<float> wanted = [] {
    Hand hand(small_request());
    return run_scored(hand, {scored(prompt(40, 5), 1)}).at(0).scores;
  }();
  for (int steps = 0; steps < 6; ++steps) {
    LoadRequest load = small_request();
    load.settings.step_tokens = 16;
    Hand hand(load);
    Request r = scored(prompt(40, 5), 12);
    r.params.temperature = 1;
    r.choices = 3;
    const auto streams = hand.engine->submit(r).streams;
    for (int i = 0; i < steps; ++i) hand.loop->step();
    streams[0]->cancel();  // whoever goes on with the prompt goes on with its scores
    std::vector<Answer> got(3);
    for (int i = 0; i < 100; ++i) {
      hand.loop->step();
      for (size_t c = 0; c < 3; ++c) drain(*streams[c], got[c]);
    }
    EXPECT_EQ(got[1].finish, Finish::kLength);
    for (size_t c = 1; c < 3; ++c) EXPECT_EQ(scores_of(*streams[c], 40), wanted) << steps << ", choice " << c;
  }
  Hand hand(small_request());
  Request beams = scored(prompt(40, 5), 4);
  beams.beams = BeamSearch{.width = 3};
  beams.choices = 2;
  const auto streams = hand.engine->submit(beams).streams;
  while (!streams[0]->ended() || !streams[1]->ended()) {
    hand.loop->step();
    for (TokenEvent event; streams[0]->next(event) || streams[1]->next(event);) {
    }
  }
  for (const auto& stream : streams) EXPECT_EQ(scores_of(*stream, 40), wanted);
}

TEST(PromptScores, AreBookedAndBounded) {
  LoadRequest load = small_request();
  load.settings.max_model_len = 1024;
  load.settings.max_queue = 40;
  Hand hand(load);
  const auto booked = [&] {
    for (const base::AccountPart& part : hand.accounts.use(base::Account::kRuntime).parts)
      if (part.name == "token streams") return part.reserved;
    return uint64_t{0};
  };
  Request r = alone(prompt(1000, 1));
  r.prompt_logprobs = sample::kLogprobsMax;
  std::vector<std::shared_ptr<Stream>> streams;
  for (int i = 0; i < 500; ++i) {
    const Submitted s = hand.engine->submit(r);
    if (s.streams.empty()) {
      EXPECT_EQ(s.refused.why, Refusal::kAnswersFull);
      break;
    }
    streams.push_back(s.streams[0]);
  }
  EXPECT_GE(streams.size(), 4u);
  EXPECT_LT(streams.size(), 500u);
  const uint64_t before = booked();
  hand.loop->step();
  EXPECT_GT(booked(), before) << "what was scored is booked";
  for (const auto& stream : streams) stream->cancel();
  hand.loop->step();
  EXPECT_GT(booked(), 0u) << "nobody has read them";
  streams.clear();
  EXPECT_EQ(booked(), 0u);
  EXPECT_EQ(hand.engine->submit(r).streams.size(), 1u) << "room comes back";
}

}  // namespace
}  // namespace tally::engine
