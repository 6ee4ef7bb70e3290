#pragma once
// The connection threads: run what is slow (JSON, templates, tokenizing, detokenizing) off the I/O thread.

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tally::serve {

class Workers : public std::enable_shared_from_this<Workers> {
 public:
  explicit Workers(size_t threads);
  ~Workers() { stop(); }

  // Runs `task` on some thread, in order of posting. Any thread; never blocks for long. After stop() tasks
  // are dropped.
  void post(std::function<void()> task);
  // Ends the threads after their present task; drops the others. From outside only.
  void stop();

 private:
  void loop();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool stopping_ = false;                    // guarded by mutex_
  std::vector<std::thread> threads_;
};

// Tasks of one lane run one after another, on whichever worker is free.
class Lane : public std::enable_shared_from_this<Lane> {
 public:
  explicit Lane(std::shared_ptr<Workers> workers) : workers_(std::move(workers)) {}
  void post(std::function<void()> task);

 private:
  void run_next();
  const std::shared_ptr<Workers> workers_;
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;  // guarded by mutex_
  bool running_ = false;                     // guarded by mutex_: a worker has, or will get, run_next
};

}  // namespace tally::serve
