#include "serve/compile_queue.h"

#include "base/clock.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tally::serve {
namespace {

std::optional<Ended> judge(const CompileWaiter& waiter, int64_t now_us) {
  if (waiter.gone()) return Ended::kDisconnect;
  if (waiter.deadline_us() != 0 && now_us >= waiter.deadline_us()) return Ended::kDeadline;
  return std::nullopt;
}

}  // namespace

bool CompileQueue::push(const std::shared_ptr<CompileWaiter>& waiter, size_t waiting_max) {
  {
    const std::lock_guard lock(mutex_);
    if (!ended_) {
      if (waiting_.size() >= waiting_max) return false;
      waiting_.push_back(waiter);
      counters_.compiling.fetch_add(1);
      compiler_.post([this] { run_next(); });  // for whoever's turn it is then
      return true;
    }
  }
  end_one(*waiter, Ended::kShutdown);
  return true;
}

void CompileQueue::expire(int64_t now_us) {
  std::vector<std::pair<std::shared_ptr<CompileWaiter>, Ended>> over;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](const auto& waiter) {
      const auto why = judge(*waiter, now_us);
      if (why) over.emplace_back(waiter, *why);
      return why.has_value();
    });
    counters_.compiling.fetch_sub(static_cast<int64_t>(over.size()));
  }
  for (const auto& [waiter, why] : over) end_one(*waiter, why);
}

void CompileQueue::end() {
  std::vector<std::shared_ptr<CompileWaiter>> all;
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    all.swap(waiting_);
    counters_.compiling.fetch_sub(static_cast<int64_t>(all.size()));
  }
  for (const auto& waiter : all) end_one(*waiter, Ended::kShutdown);
}

void CompileQueue::run_next() {
  expire(base::now_us());
  const std::shared_ptr<CompileWaiter> waiter = choose();
  if (!waiter) return;
  waiter->compile();
  if (!take(waiter)) return;
  waiter->begin(std::shared_ptr<void>(nullptr, [this](void*) { counters_.compiling.fetch_sub(1); }));
}

// The first of the tenant that has waited longest for a turn, or has had none yet.
std::shared_ptr<CompileWaiter> CompileQueue::choose() {
  const std::lock_guard lock(mutex_);
  const auto turn_of = [this](const std::shared_ptr<CompileWaiter>& waiter) {
    const auto found = last_turns_.find(waiter->tenant());
    return found == last_turns_.end() ? 0 : found->second;
  };
  const auto next = std::min_element(waiting_.begin(), waiting_.end(), [&](const auto& a, const auto& b) {
    return turn_of(a) < turn_of(b);
  });
  if (next == waiting_.end()) return nullptr;
  last_turns_[(*next)->tenant()] = ++turn_;
  return *next;
}

bool CompileQueue::take(const std::shared_ptr<CompileWaiter>& waiter) {
  const std::lock_guard lock(mutex_);
  return std::erase(waiting_, waiter) > 0;
}

void CompileQueue::end_one(CompileWaiter& waiter, Ended why) {
  counters_.ended[static_cast<size_t>(why)].fetch_add(1);
  waiter.end(why);
}

}  // namespace tally::serve
