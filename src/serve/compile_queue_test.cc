// Who waits for a constraint, and how he leaves, on a simulated clock.

#include "serve/compile_queue.h"

#include "base/clock.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tally::serve {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

// Compiles until it is let go, and notes what became of it.
class FakeWaiter final : public CompileWaiter {
 public:
  explicit FakeWaiter(int64_t deadline_us = 0, std::string tenant = "")
      : tenant_(std::move(tenant)), deadline_us_(deadline_us) {}

  const std::string& tenant() const override { return tenant_; }
  int64_t deadline_us() const override { return deadline_us_; }
  bool gone() const override { return has_gone; }
  void compile() override {
    compiling.set_value();
    let_go.get_future().wait();
  }
  void begin(std::shared_ptr<void> given) override {
    if (keeps_place) place = std::move(given);
    begun.set_value();
  }
  void end(Ended why) override {
    ++ends;
    last_why = why;
  }

  std::promise<void> compiling, let_go, begun;
  std::atomic<bool> has_gone{false}, keeps_place{false};
  std::shared_ptr<void> place;
  std::atomic<int> ends{0};
  std::atomic<Ended> last_why{Ended::kError};

 private:
  const std::string tenant_;
  const int64_t deadline_us_;
};

std::shared_ptr<FakeWaiter> pushed(CompileQueue& queue, int64_t deadline_us = 0,
                                   const std::string& tenant = "") {
  auto waiter = std::make_shared<FakeWaiter>(deadline_us, tenant);
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
  queue.stop();
  EXPECT_EQ(counters.compiling, 0);
  EXPECT_EQ(first->ends + second->ends, 0);
}

// One tenant's many keep no other waiting for more than the one that is being compiled.
TEST(CompileQueue, TenantsTakeTurns) {
  Counters counters;
  CompileQueue queue(counters);
  const auto first = compiling(queue);
  std::vector<std::shared_ptr<FakeWaiter>> many, few;
  for (int i = 0; i < 4; ++i) many.push_back(pushed(queue, 0, "many"));
  for (int i = 0; i < 2; ++i) few.push_back(pushed(queue, 0, "few"));
  first->let_go.set_value();
  for (const auto& next : {many[0], few[0], many[1]}) {
    next->compiling.get_future().wait();
    next->let_go.set_value();
  }
  few[1]->compiling.get_future().wait();
  const auto late = pushed(queue, 0, "late");  // has had no turn at all
  few[1]->let_go.set_value();
  for (const auto& next : {late, many[2], many[3]}) {
    next->compiling.get_future().wait();
    next->let_go.set_value();
  }
  EXPECT_TRUE(begins(*many[3]));
}

// At a drain the engine still takes in who is on the way to it.
TEST(CompileQueue, WhoIsOnTheWayToTheEngineCountsAsCompiling) {
  Counters counters;
  CompileQueue queue(counters);
  const auto one = compiling(queue);
  one->keeps_place = true;
  one->let_go.set_value();
  EXPECT_TRUE(begins(*one));
  queue.stop();
  EXPECT_EQ(counters.compiling, 1);
  one->place.reset();
  EXPECT_EQ(counters.compiling, 0);
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
