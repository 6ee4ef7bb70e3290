// Who waits for a constraint, and how he leaves, on a simulated clock.

#include "serve/compile_queue.h"

#include "base/clock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>

namespace tally::serve {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

// Compiles until it is let go, and notes what became of it.
class FakeWaiter final : public CompileWaiter {
 public:
  explicit FakeWaiter(int64_t deadline_us = 0) : deadline_us_(deadline_us) {}

  int64_t deadline_us() const override { return deadline_us_; }
  bool gone() const override { return has_gone; }
  void compile() override {
    compiling.set_value();
    let_go.get_future().wait();
  }
  void begin() override { begun.set_value(); }
  void end(Ended why) override {
    ++ends;
    last_why = why;
  }

  std::promise<void> compiling, let_go, begun;
  std::atomic<bool> has_gone{false};
  std::atomic<int> ends{0};
  std::atomic<Ended> last_why{Ended::kError};

 private:
  const int64_t deadline_us_;
};

std::shared_ptr<FakeWaiter> pushed(CompileQueue& queue, int64_t deadline_us = 0) {
  auto waiter = std::make_shared<FakeWaiter>(deadline_us);
  EXPECT_TRUE(queue.push(waiter, SIZE_MAX));
  return waiter;
}

// One that is being compiled, so that those behind it wait.
std::shared_ptr<FakeWaiter> compiling(CompileQueue& queue, int64_t deadline_us = 0) {
  auto waiter = pushed(queue, deadline_us);
  waiter->compiling.get_future().wait();
  return waiter;
}

bool begins(FakeWaiter& waiter) {
  return waiter.begun.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready;
}

uint64_t count(const Counters& counters, Ended why) {
  return counters.ended[static_cast<size_t>(why)].load();
}

TEST(CompileQueue, OneAfterTheOther) {
  Counters counters;
  CompileQueue queue(counters);
  const auto first = compiling(queue), second = pushed(queue);
  EXPECT_EQ(counters.compiling, 2);
  first->let_go.set_value();
  EXPECT_TRUE(begins(*first));
  second->compiling.get_future().wait();
  EXPECT_EQ(counters.compiling, 1);
  second->let_go.set_value();
  EXPECT_TRUE(begins(*second));
  EXPECT_EQ(counters.compiling, 0);
  EXPECT_EQ(first->ends + second->ends, 0);
}

TEST(CompileQueue, HoldsSoMany) {
  Counters counters;
  CompileQueue queue(counters);
  const auto first = compiling(queue);
  const auto refused = std::make_shared<FakeWaiter>();
  EXPECT_FALSE(queue.push(refused, 1));
  EXPECT_EQ(counters.compiling, 1);
  EXPECT_EQ(refused->ends, 0);
  EXPECT_TRUE(queue.push(refused, 2));
  refused->let_go.set_value();
  first->let_go.set_value();
  EXPECT_TRUE(begins(*refused));
}

// Far from now, as whoever is taken from the queue is judged by the real clock.
TEST(CompileQueue, DeadlinesHoldWaitingAndCompiling) {
  Counters counters;
  CompileQueue queue(counters);
  const int64_t now_us = base::now_us() + 3600 * kSecondUs;
  const auto first = compiling(queue, now_us + 2 * kSecondUs);
  const auto second = pushed(queue, now_us + kSecondUs), third = pushed(queue);
  queue.expire(now_us + kSecondUs - 1);
  EXPECT_EQ(second->ends, 0);
  queue.expire(now_us + kSecondUs);
  EXPECT_EQ(second->ends, 1);
  EXPECT_EQ(second->last_why, Ended::kDeadline);
  EXPECT_EQ(second.use_count(), 1) << "it still holds its place";
  EXPECT_EQ(first->ends, 0);
  queue.expire(now_us + 2 * kSecondUs);
  EXPECT_EQ(first->last_why, Ended::kDeadline);
  EXPECT_EQ(counters.compiling, 1);
  first->let_go.set_value();
  third->let_go.set_value();
  EXPECT_TRUE(begins(*third));
  EXPECT_EQ(first->ends, 1);
  EXPECT_EQ(first->begun.get_future().wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_EQ(second->compiling.get_future().wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_EQ(count(counters, Ended::kDeadline), 2u);
}

TEST(CompileQueue, WhatIsLateIsNotCompiled) {
  Counters counters;
  CompileQueue queue(counters);
  const auto first = compiling(queue), late = pushed(queue, base::now_us() - 1), third = pushed(queue);
  first->let_go.set_value();
  third->let_go.set_value();
  EXPECT_TRUE(begins(*third));
  EXPECT_EQ(late->last_why, Ended::kDeadline);
  EXPECT_EQ(late->compiling.get_future().wait_for(std::chrono::seconds(0)), std::future_status::timeout);
}

TEST(CompileQueue, WhoHasLeftIsForgotten) {
  Counters counters;
  CompileQueue queue(counters);
  const auto first = compiling(queue), second = pushed(queue);
  second->has_gone = true;
  queue.expire(0);
  EXPECT_EQ(second->last_why, Ended::kDisconnect);
  EXPECT_EQ(second.use_count(), 1);
  EXPECT_EQ(counters.compiling, 1);
  EXPECT_EQ(count(counters, Ended::kDisconnect), 1u);
  first->let_go.set_value();
  EXPECT_TRUE(begins(*first));
}

TEST(CompileQueue, TheEndIsToldToAll) {
  Counters counters;
  CompileQueue queue(counters);
  const auto first = compiling(queue), second = pushed(queue);
  queue.end();
  const auto third = pushed(queue);
  for (const auto& waiter : {first, second, third}) {
    EXPECT_EQ(waiter->ends, 1);
    EXPECT_EQ(waiter->last_why, Ended::kShutdown);
  }
  EXPECT_EQ(counters.compiling, 0);
  EXPECT_EQ(count(counters, Ended::kShutdown), 3u);
  first->let_go.set_value();
  queue.stop();
  EXPECT_EQ(first->begun.get_future().wait_for(std::chrono::seconds(0)), std::future_status::timeout);
}

}  // namespace
}  // namespace tally::serve
