#include "session.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/signal_stack.h"
#include "cli.h"

#include <malloc.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <thread>

namespace tally::apps {
namespace {

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

void block_ending_signals() {
  const sigset_t set = ending_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  for (const int ignored : {SIGHUP, SIGUSR1, SIGUSR2}) std::signal(ignored, SIG_IGN);
}

void bound_allocator() {
  constexpr int kArenas = 4, kLargeBytes = 1 << 20;
  ::mallopt(M_ARENA_MAX, kArenas);
  ::mallopt(M_MMAP_THRESHOLD, kLargeBytes);
  ::mallopt(M_TRIM_THRESHOLD, kLargeBytes);
}

Session::Session(serve::Server& server, engine::LoadRequest request, const ModelText& text)
    : server_(server), request_(std::move(request)), text_(text), accounts_(request_.settings.memory_bytes) {}

int Session::run() {
  std::thread signals([this] { wait_for_signals(); });
  std::thread engine_thread([this] { load_and_run(); });
  const int served = server_.run();
  over_ = true;
  if (engine::Engine* e = engine_ready_.load()) {
    e->stop(0);
  } else if (stopping_) {
    // Stopped while loading: there is nothing to save, and the hash of a large file cannot be interrupted.
    std::fflush(nullptr);
    ::_exit(0);
  }
  engine_thread.join();
  signals.join();
  const int failure = failure_;
  return failure != 0 ? failure : served;
}

void Session::load_and_run() {
  base::take_signal_stack();
  const int64_t begin = base::now_us();
  Progress progress("loading");
  request_.progress = [&](uint64_t done, uint64_t total) {
    progress.update(done, total);
    return !stopping_ && !over_;
  };
  auto loaded = engine::load_engine(request_, accounts_);
  if (!loaded) {
    if (!stopping_) failure_ = fail(loaded.error());
    server_.stop();
    server_.stop();
    return;
  }
  engine_ = std::move(loaded).value();
  constraints_ = std::make_unique<sample::ConstraintCompiler>(
      constraint_vocabulary(text_.tokenizer, engine_->info().vocab_size),
      constraint_limits(request_.settings, engine_->info().vocab_size),
      [this](int64_t bytes) { accounts_.book(base::Account::kRuntime, sample::kConstraintPart, bytes); });
  ::malloc_trim(0);  // what reading the header left
  engine_ready_ = engine_.get();
  serve::Backend backend;
  backend.engine = engine_.get(), backend.tokenizer = &text_.tokenizer;
  backend.chat_template = text_.chat_template ? &*text_.chat_template : nullptr;
  backend.constraints = constraints_.get();
  backend.accounts = &accounts_;
  backend.weight_parameters = text_.parameters, backend.weight_type = text_.weight_type;
  backend.prefix_cache = request_.settings.prefix_cache, backend.max_queue = request_.settings.max_queue;
  const engine::Info& info = engine_->info();
  base::log_info(
      "ready in {:.2f} s: {} KV blocks of {} tokens ({}), context {}, {} threads, {}, {} MiB in huge pages",
      static_cast<double>(base::now_us() - begin) * 1e-6, info.blocks, info.block_tokens, info.kv_type,
      info.max_model_len, request_.settings.threads, info.isa, base::process_memory().anon_huge >> 20);
  warn_of_small_pages(accounts_);
  server_.set_backend(backend);
  if (over_) engine_->stop(0);
  if (const auto ran = engine_->run(); !ran) {
    failure_ = fail(ran.error());
    server_.set_failed();
  }
}

// The first signal drains, the second ends at once. (The signals are blocked in every thread.)
void Session::wait_for_signals() {
  const sigset_t set = ending_signals();
  constexpr timespec kPoll{0, 100'000'000};
  while (!over_) {
    if (::sigtimedwait(&set, nullptr, &kPoll) < 0) continue;
    const bool loading = engine_ready_.load() == nullptr;
    stopping_ = true;
    base::log_info("stopping");
    server_.stop();
    if (loading) server_.stop();
  }
}

}  // namespace tally::apps
