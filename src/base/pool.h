#pragma once
// A fixed set of workers for parallel_for; the caller takes part. Workers set the float mode of Law 1 through
// `on_start`.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tally::base {

// A non-owning reference to a callable f(size_t item, size_t worker); no allocation.
class ItemFn {
 public:
  template <class F>
  ItemFn(const F& f)
      : object_(&f), call_([](const void* o, size_t i, size_t w) { (*static_cast<const F*>(o))(i, w); }) {}
  void operator()(size_t item, size_t worker) const { call_(object_, item, worker); }

 private:
  const void* object_;
  void (*call_)(const void*, size_t, size_t);
};

class ThreadPool {
 public:
  // `threads` in all, the caller included (1: no worker is started). Each worker runs `on_start` first.
  explicit ThreadPool(size_t threads, std::function<void()> on_start = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  size_t threads() const { return threads_; }

  // Calls f(i, worker) once for each i in [0, items), in any order and from any worker (0 = the caller);
  // returns when all are done. Allocates nothing. Requires: one caller at a time, not from inside an item.
  void parallel_for(size_t items, ItemFn f);

  class Beside;

 private:
  struct State;
  const size_t threads_;
  std::unique_ptr<State> state_;
};

// Work beside a series of parallel_fors: a worker takes one of these items before its share of a job, whose
// others go on without it. The destructor does what is left, and waits. f lives as long as this.
// Requires: one at a time, made and destroyed by the caller of parallel_for.
class ThreadPool::Beside {
 public:
  Beside(ThreadPool& pool, size_t items, ItemFn f);
  ~Beside();
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

 private:
  State& state_;
  const size_t items_;
  const ItemFn f_;
};

}  // namespace tally::base
