#include "base/pool.h"

#include "base/check.h"
#include "base/signal_stack.h"

#include <immintrin.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace tally::base {
namespace {

// A worker that finds no job spins this long before it sleeps: the gap between two ops of a forward pass is
// shorter, the gap between two requests is longer. By the clock, for a pause takes 10 to 50 ns by the CPU's
// make.
constexpr std::chrono::microseconds kSpin{40};
constexpr int kPausesBetweenLooks = 32;

// Waits with pauses until `done()`; false if it took longer than kSpin.
template <class Done>
bool spin_until(Done done) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesBetweenLooks; ++i) {
      if (done()) return true;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return done();
}

// generation | items | next, in one word: a claim is one fetch_add, and a late worker can never take an item
// of a job that is over or read the fields of one that is being replaced.
constexpr int kNextBits = 24, kItemBits = 24;
constexpr uint64_t kNextMask = (uint64_t{1} << kNextBits) - 1;
constexpr uint64_t kItemMask = (uint64_t{1} << kItemBits) - 1;

}  // namespace

struct ThreadPool::State {
  alignas(64) std::atomic<uint64_t> ticket{0};
  alignas(64) std::atomic<uint32_t> completed{0};
  alignas(64) std::atomic<uint32_t> generation{0};
  std::atomic<bool> stopping{false};
  // Written before the ticket of its generation is published, read only by holders of a valid claim.
  const ItemFn* job = nullptr;
  std::vector<std::thread> workers;
  // The same of the work beside; its ticket without a generation.
  alignas(64) std::atomic<uint64_t> beside_ticket{0};
  std::atomic<uint32_t> beside_completed{0};
  const ItemFn* beside_job = nullptr;

  // Runs items of the current job until none is left.
  void drain(size_t worker) {
    for (;;) {
      const uint64_t claim = ticket.fetch_add(1, std::memory_order_acq_rel);
      const uint64_t item = claim & kNextMask, items = (claim >> kNextBits) & kItemMask;
      if (item >= items) return;
      (*job)(item, worker);
      completed.fetch_add(1, std::memory_order_release);
    }
  }

  // One item of the work beside, if there is one.
  bool take_beside(size_t worker) {
    const auto left = [](uint64_t at) { return (at & kNextMask) < ((at >> kNextBits) & kItemMask); };
    if (!left(beside_ticket.load(std::memory_order_acquire))) return false;
    const uint64_t claim = beside_ticket.fetch_add(1, std::memory_order_acq_rel);
    if (!left(claim)) return false;
    (*beside_job)(claim& kNextMask, worker);
    beside_completed.fetch_add(1, std::memory_order_release);
    return true;
  }

  void work(size_t worker, const std::function<void()>& on_start) {
    if (on_start) on_start();
    uint32_t seen = 0;
    for (;;) {
      if (!spin_until([&] { return generation.load(std::memory_order_acquire) != seen; })) {
        generation.wait(seen, std::memory_order_acquire);  // a futex
      }
      seen = generation.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_acquire)) return;
      take_beside(worker);
      drain(worker);
    }
  }
};

ThreadPool::ThreadPool(size_t threads, std::function<void()> on_start)
    : threads_(threads), state_(std::make_unique<State>()) {
  TALLY_CHECK(threads >= 1 && threads <= 1024, "thread count", threads);
  for (size_t w = 1; w < threads; ++w) {
    state_->workers.emplace_back([state = state_.get(), w, on_start] {
      take_signal_stack();
      state->work(w, on_start);
    });
  }
}

ThreadPool::~ThreadPool() {
  state_->stopping.store(true, std::memory_order_release);
  state_->generation.fetch_add(1, std::memory_order_release);
  state_->generation.notify_all();
  for (std::thread& t : state_->workers) t.join();
}

void ThreadPool::parallel_for(size_t items, ItemFn f) {
  if (items == 0) return;
  if (items == 1 || threads_ == 1) {
    for (size_t i = 0; i < items; ++i) f(i, 0);
    return;
  }
  TALLY_CHECK(items <= kItemMask, "too many items", items);
  State& s = *state_;
  s.job = &f;
  s.completed.store(0, std::memory_order_relaxed);
  s.ticket.store(uint64_t{items} << kNextBits, std::memory_order_release);
  s.generation.fetch_add(1, std::memory_order_release);
  s.generation.notify_all();
  s.drain(0);
  const auto all_done = [&] { return s.completed.load(std::memory_order_acquire) == items; };
  while (!spin_until(all_done)) std::this_thread::yield();  // a worker holds an item, perhaps without a core
}

ThreadPool::Beside::Beside(ThreadPool& pool, size_t items, ItemFn f)
    : state_(*pool.state_), items_(items), f_(f) {
  TALLY_CHECK(items <= kItemMask, "too many items", items);
  state_.beside_job = &f_;
  state_.beside_completed.store(0, std::memory_order_relaxed);
  state_.beside_ticket.store(uint64_t{items} << kNextBits, std::memory_order_release);
}

ThreadPool::Beside::~Beside() {
  while (state_.take_beside(0)) {
  }
  const auto all_done = [&] { return state_.beside_completed.load(std::memory_order_acquire) == items_; };
  while (!spin_until(all_done)) std::this_thread::yield();
}

}  // namespace tally::base
