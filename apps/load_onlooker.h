#pragma once
// Who watches while requests are under way.

#include "measure/load.h"

#include <atomic>
#include <thread>

namespace tally::apps {

// Draws what is going on, and looks for Ctrl-C, on a thread of its own: a slow terminal delays no request.
class LoadOnlooker {
 public:
  explicit LoadOnlooker(measure::LoadLive& live) : live_(live), thread_([this] { look(); }) {}
  ~LoadOnlooker() {
    is_over_ = true;
    thread_.join();
  }

 private:
  void look();

  measure::LoadLive& live_;
  std::atomic<bool> is_over_{false};
  std::thread thread_;
};

}  // namespace tally::apps
