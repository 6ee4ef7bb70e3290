// The engine on a tiny real model: equalities E1-E3, cancellation, drain, accounts, no allocation in a steady
// step.
#include "engine/engine.h"

#include "base/clock.h"
#include "engine/hand_test_support.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <thread>

namespace {
// Counts allocations of the calling thread while armed.
thread_local bool counting = false;
thread_local size_t allocations = 0;
}  // namespace

// Not inlined: the compiler must not pair malloc with a delete it sees.
[[gnu::noinline]] void* operator new(size_t n) {
  if (counting) ++allocations;
  if (void* p = std::malloc(n == 0 ? 1 : n)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new[](size_t n) { return operator new(n); }
[[gnu::noinline]] void* operator new(size_t n, const std::nothrow_t&) noexcept {  // std::stable_sort's buffer
  if (counting) ++allocations;
  return std::malloc(n == 0 ? 1 : n);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace tally::engine {
namespace {

std::vector<Request> mixed_requests() {
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 8; ++i) requests.push_back(greedy(prompt(5 + 9 * i, 77 + i % 3), 20 + i));
  requests[3].params.temperature = 1;
  requests[3].params.seed = 42;
  return requests;
}

TEST(Engine, AloneBatchedChunkedAndPreemptedAreTheSameBits) {
  std::vector<Answer> alone;
  for (const Request& r : mixed_requests()) alone.push_back(Hand(small_request()).run({r}).at(0));
  for (const Answer& a : alone) EXPECT_EQ(a.finish, Finish::kLength);

  struct Variant {
    const char* name;
    void (*change)(Settings&);
  };
  const Variant variants[] = {
      {"batch", [](Settings&) {}},
      {"step-tokens 16", [](Settings& s) { s.step_tokens = 16; }},
      {"threads 1", [](Settings& s) { s.threads = 1; }},
      {"block 64", [](Settings& s) { s.block_tokens = 64; }},
      {"prefix cache off", [](Settings& s) { s.prefix_cache = false; }},
      {"scalar", [](Settings& s) { s.isa = "scalar"; }},
      {"small pool", [](Settings& s) { s.kv_pool_bytes = 1; }},  // replaced below by 14 blocks
  };
  for (const Variant& variant : variants) {
    LoadRequest request = small_request();
    variant.change(request.settings);
    const bool small_pool = request.settings.kv_pool_bytes == 1;
    if (small_pool) {
      const MemoryPlan plan = plan_memory(small_request()).value();
      request.settings.kv_pool_bytes = 14 * plan.kv_bytes_per_token * 16;
    }
    Hand hand(request);
    const std::vector<Answer> got = hand.run(mixed_requests());
    for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], alone[i]) << variant.name << ", request " << i;
    const Stats stats = hand.engine->stats();
    EXPECT_EQ(stats.blocks_held, 0u) << variant.name;
    if (small_pool) {
      EXPECT_GT(stats.preemptions, 0u) << "the pool was meant to be too small";
    }
  }
}

TEST(Engine, PrefixHitGivesTheSameBits) {
  Hand hand(small_request());
  const Request r = greedy(prompt(70, 5), 12);
  const Answer cold = hand.run({r}).at(0), warm = hand.run({r}).at(0);
  EXPECT_EQ(cold, warm);
  EXPECT_EQ(cold.receipt.cached_tokens, 0u);
  EXPECT_EQ(warm.receipt.cached_tokens, 69u);  // the answer filled the prompt's last block
  Request salted = r;
  salted.salt = "other";
  EXPECT_EQ(hand.run({salted}).at(0).receipt.cached_tokens, 0u);
  EXPECT_GT(hand.engine->reset_prefix_cache(), 0u);
  EXPECT_EQ(hand.run({r}).at(0).receipt.cached_tokens, 0u);
}

// Texts that part inside a block: the later one begins with rows copied from the earlier one's.
TEST(Engine, HitInsideABlockGivesTheSameBits) {
  for (const char* codec : {"f32", "bf16", "int8", "k8v4", "int4"}) {
    for (const size_t common : {size_t{4}, size_t{20}, size_t{47}, size_t{63}}) {
      LoadRequest request = small_request();
      request.settings.kv_type = codec;
      const Request first = greedy(prompt(70, 5), 4);
      Request second = greedy(prompt(70, 6), 12);
      std::copy_n(first.prompt.begin(), common, second.prompt.begin());
      const Answer alone = Hand(request).run({second}).at(0);
      Hand hand(request);
      const Answer before = hand.run({first}).at(0);
      const Answer got = hand.run({second}).at(0);
      EXPECT_EQ(got, alone) << codec << ", " << common;
      EXPECT_EQ(got.receipt.cached_tokens, common) << codec;
      EXPECT_EQ(hand.run({first}).at(0), before) << codec << ": rows of the first were written over";
    }
  }
}

TEST(Engine, ReceiptStagesSumToTheWall) {
  Hand hand(small_request());
  for (const Answer& a : hand.run(mixed_requests())) {
    const Receipt& r = a.receipt;
    const double wall = static_cast<double>(r.last_us - r.queued_us) * 1e-6;
    EXPECT_NEAR(r.queue_s + r.prefill_s + r.stalled_s + r.decode_s + r.sample_s, wall, 1e-4 + wall * 1e-3);
    EXPECT_EQ(r.generated_tokens, a.ids.size());
    EXPECT_GT(r.kv_blocks, 0u);
  }
}

TEST(Engine, RefusesAtTheDoor) {
  LoadRequest request = small_request();
  request.settings.max_queue = 1;
  request.settings.max_seqs = 1;
  Hand hand(request);
  const Refused context = hand.engine->submit(greedy(prompt(100, 1), 29)).refused;
  EXPECT_EQ(context.why, Refusal::kContextLength);
  EXPECT_EQ(context.needed, 129u);
  EXPECT_EQ(context.available, 128u);
  EXPECT_EQ(hand.engine->submit(greedy(prompt(100, 1), 28)).streams.size(), 1u);  // takes the seat
  EXPECT_EQ(hand.engine->submit(greedy(prompt(5, 1), 5)).streams.size(), 1u);     // takes the queue
  const Submitted full = hand.engine->submit(greedy(prompt(5, 1), 5));
  EXPECT_TRUE(full.streams.empty());
  EXPECT_EQ(full.refused.why, Refusal::kQueueFull);
  EXPECT_GE(full.refused.retry_after_s, 1u);
  hand.engine->stop(base::now_us());
  EXPECT_EQ(hand.engine->submit(greedy(prompt(5, 1), 5)).refused.why, Refusal::kStopping);
}

TEST(Engine, CancelEndsWithinTwoStepsAndFreesBlocks) {
  Hand hand(small_request());
  const auto kept = hand.engine->submit(greedy(prompt(20, 2), 30)).streams.at(0);
  const auto gone = hand.engine->submit(greedy(prompt(20, 3), 100)).streams.at(0);
  hand.loop->step();
  hand.loop->step();
  gone->cancel();
  gone->cancel();
  hand.loop->step();
  hand.loop->step();
  Answer cancelled;
  ASSERT_TRUE(drain(*gone, cancelled));
  EXPECT_EQ(cancelled.finish, Finish::kCancelled);
  Answer answer;
  while (!drain(*kept, answer)) hand.loop->step();
  EXPECT_EQ(answer, Hand(small_request()).run({greedy(prompt(20, 2), 30)}).at(0));
  EXPECT_EQ(hand.engine->stats().blocks_held, 0u);
  gone->cancel();  // after the end: nothing
}

TEST(Engine, DeadlineInQueueAndRunning) {
  Hand hand(small_request());
  Request late = greedy(prompt(10, 1), 50);
  late.deadline_us = base::now_us() - 1;
  const auto stream = hand.engine->submit(late).streams.at(0);
  hand.loop->step();
  Answer answer;
  ASSERT_TRUE(drain(*stream, answer));
  EXPECT_EQ(answer.finish, Finish::kDeadline);
  EXPECT_TRUE(answer.ids.empty());
}

TEST(Engine, RunsOnItsThreadAndDrains) {
  Hand hand(small_request());
  std::thread thread([&] { EXPECT_TRUE(hand.engine->run()); });
  std::mutex mutex;
  std::condition_variable rung;
  int notified = 0;
  std::vector<std::shared_ptr<Stream>> streams;
  for (Request r : mixed_requests()) {
    r.notify = [&] {
      const std::lock_guard lock(mutex);
      ++notified;
      rung.notify_one();
    };
    streams.push_back(hand.engine->submit(std::move(r)).streams.at(0));
  }
  hand.engine->stop(base::now_us() + 60'000'000);
  std::vector<Answer> answers(streams.size());
  for (size_t i = 0; i < streams.size(); ++i) {
    while (!drain(*streams[i], answers[i])) {
      std::unique_lock lock(mutex);
      rung.wait_for(lock, std::chrono::milliseconds(200));
    }
    EXPECT_EQ(answers[i].finish, Finish::kLength);
  }
  thread.join();
  EXPECT_GT(notified, 0);
}

TEST(Engine, SecondStopEndsAtOnce) {
  Hand hand(small_request());
  const auto stream = hand.engine->submit(greedy(prompt(10, 1), 118)).streams.at(0);
  hand.engine->stop(base::now_us() + 60'000'000);
  hand.engine->stop(base::now_us());
  EXPECT_TRUE(hand.engine->run());  // after both: beside them it may come to the answer's own end first
  Answer answer;
  ASSERT_TRUE(drain(*stream, answer));
  EXPECT_EQ(answer.finish, Finish::kShutdown);
}

TEST(Engine, SteadyStepAllocatesNothing) {
  Hand hand(small_request());
  std::vector<std::shared_ptr<Stream>> streams;
  for (uint32_t i = 0; i < 6; ++i)
    streams.push_back(hand.engine->submit(greedy(prompt(10 + i, i), 80)).streams.at(0));
  Request beams = greedy(prompt(9, 50), 80);
  beams.beams = BeamSearch{.width = 2};
  streams.push_back(hand.engine->submit(beams).streams.at(0));
  for (int i = 0; i < 8; ++i) hand.loop->step();
  allocations = 0;
  counting = true;
  for (int i = 0; i < 40; ++i) hand.loop->step();
  counting = false;
  EXPECT_EQ(allocations, 0u);
}

TEST(Engine, StepsThatScoreAllocateNothing) {
  Hand hand(small_request());
  Request r = greedy(prompt(100, 1), 5);
  r.prompt_logprobs = 20;
  const auto stream = hand.engine->submit(r).streams.at(0);
  hand.loop->step();
  allocations = 0;
  counting = true;
  for (int i = 0; i < 10; ++i) hand.loop->step();
  counting = false;
  EXPECT_EQ(allocations, 0u);
  sample::Score score;
  EXPECT_TRUE(stream->score(81, score));
}

// The log of steps and the totals are the same account.
TEST(Engine, StepsAddUpToTheTotals) {
  Hand hand(small_request());
  hand.run({greedy(prompt(100, 1), 10), greedy(prompt(20, 2), 30)});
  const StepPage page = hand.engine->steps(0, SIZE_MAX);
  const Stats stats = hand.engine->stats();
  ASSERT_EQ(page.steps.size(), page.last);
  EXPECT_EQ(page.last, stats.steps_prefill + stats.steps_decode + stats.steps_mixed);
  uint64_t prefill = 0, decode = 0, weights = 0, kv = 0;
  int64_t ended_us = 0;
  for (const StepRecord& r : page.steps) {
    prefill += r.prefill_rows, decode += r.decode_rows, weights += r.weight_bytes, kv += r.kv_bytes;
    int64_t sum = 0;
    for (const int64_t us : r.phases_us) {
      EXPECT_GE(us, 0);
      sum += us;
    }
    EXPECT_EQ(sum, r.duration_us);
    EXPECT_GE(r.begin_us, ended_us);
    ended_us = r.begin_us + r.duration_us;
    EXPECT_GT(r.flops, 0u);
    EXPECT_EQ(r.blocks_free + r.blocks_held + r.blocks_cached, stats.blocks_total);
  }
  EXPECT_EQ(prefill, 120u);
  EXPECT_EQ(decode, 9u + 29);
  EXPECT_EQ(prefill, stats.rows_prefill);
  EXPECT_EQ(decode, stats.rows_decode);
  EXPECT_EQ(weights, stats.weight_bytes_read);
  EXPECT_EQ(kv, stats.kv_bytes_read);
  EXPECT_EQ(hand.engine->steps(page.last - 1, 10).steps.size(), 1u);
}

// A long answer is paid for as it grows, and not before.
TEST(Engine, StreamsAreBookedAsTheyGrow) {
  LoadRequest request = small_request();
  request.settings.max_model_len = 1024;
  Hand hand(request);
  const auto booked = [&] {
    for (const base::AccountPart& part : hand.accounts.use(base::Account::kRuntime).parts)
      if (part.name == "token streams") return part.reserved;
    return uint64_t{0};
  };
  Request endless = greedy(prompt(5, 1), 1000);
  endless.params.logprobs = -1, endless.params.ignore_eos = true;
  const auto stream = hand.engine->submit(endless).streams.at(0);
  const uint64_t empty = booked();
  EXPECT_EQ(empty, TokenStream::bytes_in_use(0, 0));
  hand.loop->step();
  EXPECT_EQ(booked(), TokenStream::bytes_in_use(1, 0));
  for (int i = 0; i < 400; ++i) hand.loop->step();
  EXPECT_EQ(booked(), TokenStream::bytes_in_use(401, 0));
  EXPECT_GT(booked(), TokenStream::bytes_in_use(1, 0));
  EXPECT_LT(booked(), TokenStream::bytes_in_use(1000, 0));
  stream->cancel();
  hand.loop->step();
  Answer answer;
  EXPECT_TRUE(drain(*stream, answer));
  EXPECT_EQ(booked(), 0u);
}

}  // namespace
}  // namespace tally::engine
