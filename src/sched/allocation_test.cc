// Law 2: the step loop allocates nothing from the heap. Every allocation of the test binary is counted.

#include "sched/plan.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<uint64_t> allocations{0};

void* counted(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* p = std::malloc(bytes == 0 ? 1 : bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
}  // namespace

void* operator new(size_t bytes) { return counted(bytes); }
void* operator new[](size_t bytes) { return counted(bytes); }
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {  // std::stable_sort's buffer
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

namespace tally::sched {
namespace {

struct Loop {
  Loop(uint32_t blocks, bool prefix_cache, uint32_t step_tokens)
      : ledger({blocks, 16, prefix_cache, 64}), scheduler({16, 64, 0, step_tokens, 4096, {}}, ledger) {
    outcomes.reserve(64);
  }

  void submit(uint64_t id, uint32_t prompt, uint32_t max_tokens, uint32_t choices = 1, bool beams = false) {
    Request request;
    request.seq = SeqId{id};
    request.choices = choices, request.beams = beams;
    request.arrival = static_cast<Tick>(id);
    for (uint32_t i = 0; i < prompt; ++i)
      request.prompt.push_back(TokenId{static_cast<int32_t>(id * 10'000 + i)});
    request.max_tokens = max_tokens;
    ASSERT_EQ(scheduler.submit(std::move(request)).refusal, Refusal::kNone);
  }

  void step() {
    for (uint64_t id = 1; id <= drafted; ++id) scheduler.offer(SeqId{id}, 3);
    const StepPlan& plan = scheduler.plan(++now);
    outcomes.clear();
    for (const PlannedRows& group : plan.rows) {
      const uint32_t accepted = group.drafts > 0 ? static_cast<uint32_t>(now) % (group.drafts + 1) : 0;
      const size_t first = outcomes.size();
      for (uint32_t i = 0; i < group.outcomes() + accepted; ++i)
        outcomes.push_back({TokenId{static_cast<int32_t>(now % 1000)}, false, false});
      if (accepted > 0) outcomes[first].accepted = accepted, tokens_ahead += accepted;
    }
    // Of four beams the last two go on from the first.
    for (size_t i = 2; beams_move && plan.rows.size() == 4 && i < 4; ++i) outcomes[i].from = plan.rows[0].seq;
    if (!plan.rows.empty()) scheduler.commit(outcomes, now);
  }

  uint64_t allocations_in(int steps) {
    const uint64_t before = allocations.load();
    for (int i = 0; i < steps; ++i) step();
    return allocations.load() - before;
  }

  kv::Ledger ledger;
  Scheduler scheduler;
  std::vector<Outcome> outcomes;
  Tick now = 0;
  bool beams_move = false;
  uint64_t drafted = 0, tokens_ahead = 0;  // the first sequences; drafts that were accepted
};

TEST(Allocation, TheCounterCounts) {
  const uint64_t before = allocations.load();
  auto p = std::make_unique<int>(1);
  EXPECT_GT(allocations.load(), before);
}

TEST(Allocation, SteadyDecodeAllocatesNothing) {
  for (const bool prefix_cache : {true, false}) {
    Loop loop(512, prefix_cache, 256);
    for (uint64_t id = 1; id <= 16; ++id) loop.submit(id, 20 + static_cast<uint32_t>(id), 400);
    for (int i = 0; i < 4; ++i) loop.step();
    ASSERT_EQ(loop.scheduler.queue_stats().running, 16U);
    EXPECT_EQ(loop.allocations_in(300), 0U) << "growth across blocks, registered as they fill";
    EXPECT_EQ(loop.scheduler.queue_stats().running, 16U);
  }
}

TEST(Allocation, PrefillBesideDecodesAndEvictionAllocateNothing) {
  Loop loop(128, true, 24);
  loop.submit(1, 1000, 4);  // fills the pool with cached blocks
  while (!loop.scheduler.idle()) loop.step();
  for (uint64_t id = 2; id <= 5; ++id) loop.submit(id, 16, 200);
  loop.submit(6, 900, 10);
  loop.step();
  EXPECT_EQ(loop.allocations_in(60), 0U);
  EXPECT_GT(loop.ledger.stats().evictions, 0U);
}

TEST(Allocation, PreemptionReturnAndEndAllocateNothing) {
  Loop loop(24, true, 64);
  for (uint64_t id = 1; id <= 6; ++id) loop.submit(id, 40, 150);
  EXPECT_EQ(loop.allocations_in(1500), 0U);
  EXPECT_TRUE(loop.scheduler.idle());
  EXPECT_GT(loop.scheduler.queue_stats().preemptions, 0U);
}

TEST(Allocation, DraftsAllocateNothing) {
  Loop loop(512, true, 256);
  for (uint64_t id = 1; id <= 4; ++id) loop.submit(id, 20 + static_cast<uint32_t>(id), 1000);
  for (int i = 0; i < 4; ++i) loop.step();
  loop.drafted = 4;
  EXPECT_EQ(loop.allocations_in(200), 0U);
  EXPECT_EQ(loop.scheduler.queue_stats().running, 4U);
  EXPECT_GT(loop.tokens_ahead, 500U);
}

TEST(Allocation, ForksAndMovingBeamsAllocateNothing) {
  for (const bool beams : {false, true}) {
    Loop loop(512, true, 256);
    loop.submit(1, 40, 200, 4, beams);
    EXPECT_EQ(loop.allocations_in(1), 0U) << "the prompt, and the choices that begin with it";
    loop.beams_move = beams;
    EXPECT_EQ(loop.allocations_in(150), 0U);
    EXPECT_EQ(loop.scheduler.queue_stats().running, 4U);
    EXPECT_GE(loop.scheduler.queue_stats().copied_blocks, beams ? 200U : 3U);
  }
}

}  // namespace
}  // namespace tally::sched
