#include "serve/workers.h"

#include "base/signal_stack.h"

#include <algorithm>

namespace tally::serve {

Workers::Workers(size_t threads) {
  for (size_t i = 0; i < std::max<size_t>(threads, 1); ++i) threads_.emplace_back([this] {
    base::take_signal_stack();
    loop();
  });
}

void Workers::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void Workers::stop() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    dropped.swap(tasks_);
  }
  wake_.notify_all();
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

void Workers::loop() {
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
      if (stopping_) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

void Lane::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (running_) return;
    running_ = true;
  }
  workers_->post([self = shared_from_this()] { self->run_next(); });
}

// One task a turn: a busy lane does not keep a worker from the others.
void Lane::run_next() {
  std::function<void()> task;
  {
    const std::lock_guard lock(mutex_);
    task = std::move(tasks_.front());
    tasks_.pop_front();
  }
  task();
  task = nullptr;
  {
    const std::lock_guard lock(mutex_);
    if (tasks_.empty()) {
      running_ = false;
      return;
    }
  }
  workers_->post([self = shared_from_this()] { self->run_next(); });
}

}  // namespace tally::serve
