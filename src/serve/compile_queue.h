#pragma once
// Requests whose constraint is not there yet. One thread compiles: seconds there keep no answer from its
// text. Tenants take turns, so that one which brings many keeps no other waiting for more than one; the
// requests of one go in the order of their coming. Until a request has had its turn it is ended from here: by
// its deadline, by its client's leaving, or with the server.
//
// Invariant: who is in waiting_ has had neither begin() nor end(); to take it out is the right to call one.
// Threads: any.

#include "serve/counters.h"
#include "serve/workers.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tally::serve {

// A request on its way through the queue: compile() and then begin(); or, at any time before begin(), end()
// and nothing after it.
class CompileWaiter {
 public:
  virtual ~CompileWaiter() = default;
  virtual const std::string& tenant() const = 0;
  virtual int64_t deadline_us() const = 0;  // 0: none
  virtual bool gone() const = 0;            // its client has left
  // On the compiling thread. end() may be called meanwhile.
  virtual void compile() = 0;
  // It counts as compiling for as long as somebody holds `place`: until the engine has it.
  virtual void begin(std::shared_ptr<void> place) = 0;
  // Deadline, disconnect or shutdown. Any thread; must not block.
  virtual void end(Ended why) = 0;
};

class CompileQueue {
 public:
  // Counts in `counters` who waits (compiling) and who was ended here (ended).
  explicit CompileQueue(Counters& counters) : counters_(counters) {}

  // False: so many wait already, and nothing has changed. SIZE_MAX: no limit.
  bool push(const std::shared_ptr<CompileWaiter>& waiter, size_t waiting_max);
  // Ends those whose client has left, or whose deadline is not after now_us; the one that is being compiled
  // too.
  void expire(int64_t now_us);
  // Ends all, and whoever comes later.
  void end();
  // Ends the thread after its present compilation.
  void stop() { compiler_.stop(); }

 private:
  void run_next();
  std::shared_ptr<CompileWaiter> choose();
  bool take(const std::shared_ptr<CompileWaiter>& waiter);
  void end_one(CompileWaiter& waiter, Ended why);

  Counters& counters_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<CompileWaiter>> waiting_;  // guarded by mutex_; as they came
  std::map<std::string, uint64_t> last_turns_;           // guarded by mutex_; by tenant: few
  uint64_t turn_ = 0;                                    // guarded by mutex_
  bool ended_ = false;                                   // guarded by mutex_
  Workers compiler_{1};                                  // last: it ends first, as its tasks use the rest
};

}  // namespace tally::serve
