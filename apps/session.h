#pragma once
// The threads around a server: one that loads the model and then is the engine thread, one that waits for
// signals.

#include "engine/memory.h"
#include "loading.h"
#include "serve/server.h"

#include <atomic>
#include <memory>

namespace tally::apps {

// Blocks SIGTERM and SIGINT in the calling thread and those it starts, ignores the others that would end the
// process. To be called before any thread is started.
void block_ending_signals();

// Few arenas, and what is large goes back to the kernel when it is freed: the process holds what its accounts
// say. To be called before any thread is started.
void bound_allocator();

class Session {
 public:
  // All three outlive run().
  Session(serve::Server& server, engine::LoadRequest request, const ModelText& text);
  // Serves until drained; the exit code.
  int run();

 private:
  void load_and_run();
  void wait_for_signals();

  serve::Server& server_;
  engine::LoadRequest request_;
  const ModelText& text_;
  base::Accounts accounts_;
  std::unique_ptr<sample::ConstraintCompiler> constraints_;
  std::unique_ptr<engine::Engine> engine_;
  std::atomic<engine::Engine*> engine_ready_{nullptr};
  std::atomic<bool> stopping_{false}, over_{false};
  std::atomic<int> failure_{0};
};

}  // namespace tally::apps
