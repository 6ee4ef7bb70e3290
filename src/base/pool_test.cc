#include "base/pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace tally::base {
namespace {

TEST(ThreadPool, EveryItemOnceWhateverTheSizes) {
  for (const size_t threads : {1u, 2u, 3u, 8u}) {
    ThreadPool pool(threads);
    for (size_t items = 0; items < 70; ++items) {
      std::vector<std::atomic<int>> hits(items);
      std::atomic<bool> worker_in_range{true};
      pool.parallel_for(items, [&](size_t i, size_t worker) {
        hits[i].fetch_add(1);
        if (worker >= threads) worker_in_range = false;
      });
      for (size_t i = 0; i < items; ++i)
        ASSERT_EQ(hits[i].load(), 1) << threads << " threads, item " << i << " of " << items;
      EXPECT_TRUE(worker_in_range);
    }
  }
}

TEST(ThreadPool, JobsBackToBackDoNotMix) {
  ThreadPool pool(4);
  uint64_t wanted = 0;
  std::atomic<uint64_t> sum{0};
  for (uint64_t job = 1; job <= 20'000; ++job) {
    const size_t items = 1 + job % 5;
    pool.parallel_for(items, [&, job](size_t i, size_t) { sum.fetch_add(job * (i + 1)); });
    for (size_t i = 0; i < items; ++i) wanted += job * (i + 1);
    ASSERT_EQ(sum.load(), wanted) << "job " << job;
  }
}

TEST(ThreadPool, EachWorkerRunsOnStart) {
  std::atomic<int> started{0};
  {
    ThreadPool pool(4, [&] { started.fetch_add(1); });
    pool.parallel_for(64, [](size_t, size_t) {});
  }
  EXPECT_EQ(started.load(), 3) << "the caller is not a worker";
}

// Every item once, whatever runs beside it, and done when the object is gone.
TEST(ThreadPool, WorkBesideIsDoneOnceAndInTime) {
  for (const size_t threads : {1u, 2u, 4u}) {
    ThreadPool pool(threads);
    for (size_t round = 0; round < 300; ++round) {
      const size_t items = round % 7;
      std::vector<std::atomic<int>> beside(items), jobs(64);
      const auto side = [&](size_t i, size_t) { beside[i].fetch_add(1); };
      {
        const ThreadPool::Beside work(pool, items, side);
        for (int job = 0; job < 3; ++job)
          pool.parallel_for(jobs.size(), [&](size_t i, size_t) { jobs[i].fetch_add(1); });
      }
      for (const auto& count : beside) ASSERT_EQ(count.load(), 1);
      for (const auto& count : jobs) ASSERT_EQ(count.load(), 3);
    }
  }
}

}  // namespace
}  // namespace tally::base
