// The log of steps: what it keeps, what it says is gone, and that a reader never sees half a record.
#include "engine/step_log.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace tally::engine {
namespace {

// Every field follows from the number.
StepRecord record(uint64_t step) {
  StepRecord r{
      .step = step, .begin_us = static_cast<int64_t>(step) * 10, .prefill_rows = step, .flops = step * 3};
  for (int64_t& us : r.phases_us) us = static_cast<int64_t>(step);
  r.duration_us = static_cast<int64_t>(step * kPhases);
  return r;
}

bool is_whole(const StepRecord& r) {
  int64_t sum = 0;
  for (const int64_t us : r.phases_us) sum += us;
  return r.prefill_rows == r.step && r.flops == r.step * 3 && sum == r.duration_us &&
         r.begin_us == static_cast<int64_t>(r.step) * 10;
}

TEST(StepLog, KeepsTheLastAndSaysWhatIsGone) {
  StepLog log;
  StepPage page = log.read(0, 10);
  EXPECT_EQ(page.first, 1u);
  EXPECT_EQ(page.last, 0u);
  EXPECT_FALSE(page.dropped);
  EXPECT_TRUE(log.read(1, 10).dropped);  // of a server that ran before

  const uint64_t all = StepLog::kKept + 5;
  for (uint64_t step = 1; step <= all; ++step) log.add(record(step));
  page = log.read(0, 3);
  EXPECT_TRUE(page.dropped);
  EXPECT_EQ(page.first, 6u);
  ASSERT_EQ(page.steps.size(), 3u);
  EXPECT_EQ(page.steps[0].step, 6u);
  page = log.read(all - 2, 10);
  EXPECT_FALSE(page.dropped);
  ASSERT_EQ(page.steps.size(), 2u);
  EXPECT_EQ(page.steps[1].step, all);
  EXPECT_TRUE(is_whole(page.steps[1]));
  EXPECT_TRUE(log.read(all, 10).steps.empty());
  EXPECT_EQ(log.read(5, SIZE_MAX).steps.size(), StepLog::kKept);
}

TEST(StepLog, ReadersSeeWholeRecordsInOrder) {
  StepLog log;
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (uint64_t step = 1; step <= 20 * StepLog::kKept; ++step) log.add(record(step));
    over = true;
  });
  uint64_t seen = 0, broken = 0;
  while (!over || seen < log.last()) {
    const StepPage page = log.read(seen, 1000);
    for (const StepRecord& r : page.steps) {
      broken += !is_whole(r) || r.step <= seen || (!page.dropped && r.step != seen + 1);
      seen = r.step;
    }
  }
  writer.join();
  EXPECT_EQ(broken, 0u);
  EXPECT_EQ(seen, 20 * StepLog::kKept);
}

}  // namespace
}  // namespace tally::engine
