#pragma once
// The site behind the transport: gate, routes, life and death. Probes are answered on the I/O thread, the
// rest on workers.

#include "serve/compile_queue.h"
#include "serve/counters.h"
#include "serve/desk.h"
#include "serve/gate.h"
#include "serve/http/transport.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace tally::serve {

enum class Health : uint8_t { kLoading, kReady, kDraining, kFailed };

class TallySite final : public http::Site {
 public:
  explicit TallySite(const Settings& settings);
  ~TallySite() override;

  // Requests that wait for a constraint are told that the server is shutting down, later ones too; a
  // compilation that is under way ends. Any thread, before end_tasks.
  void end_compilations();
  // After the transport has run: tasks that are under way end, the others are dropped, and nothing uses the
  // back end any more.
  void end_tasks();
  // Before the transport runs.
  void attach(http::Transport& transport);

  void set_backend(const Backend& backend);  // any thread
  void set_health(Health health);            // any thread; kFailed stays
  Health health() const { return health_.load(); }
  std::shared_ptr<Desk> desk() const;  // null while loading
  // Whether requests wait for a constraint, which the engine does not know of yet.
  bool is_compiling() const { return counters_.compiling.load() > 0; }
  // Asked each tick, on the I/O thread.
  std::function<void(int64_t now_us)> on_tick;

  std::optional<http::Response> judge_head(http::Request& request) override;
  void handle(std::shared_ptr<http::Exchange> exchange) override;
  http::Response refuse(int status, const std::string& message) override;
  void answered(const http::Request& request, int status) override;
  void tick(int64_t now_us) override;

 private:
  std::optional<ApiError> judge_route(const http::Request& request, std::string& allow) const;
  std::optional<ApiError> judge_health() const;
  http::Response probe(const Route& route) const;
  void run_page(const std::shared_ptr<http::Exchange>& exchange);
  std::optional<ApiError> run_generation(const Route& route, const std::shared_ptr<http::Exchange>& exchange);
  http::Response page(const Route& route, const http::Request& request);
  http::Response error(const http::Request& request, const ApiError& error);
  void count_received(const http::Request& request);
  // Fields that go on every answer.
  void add_fields(const http::Request& request, std::vector<http::Field>& fields) const;

  const Settings settings_;
  const std::shared_ptr<Workers> workers_;
  std::unique_ptr<Gate> gate_;
  http::Transport* transport_ = nullptr;
  Counters counters_;
  CompileQueue compile_queue_{counters_};
  std::atomic<Health> health_{Health::kLoading};
  mutable std::mutex mutex_;
  std::shared_ptr<Desk> desk_;  // guarded by mutex_
  bool tasks_ended_ = false;
  size_t booked_bytes_ = 0;  // I/O thread: what connections held at the last tick
  int64_t refusal_logged_us_ = 0;
  uint64_t refusals_unlogged_ = 0;
};

}  // namespace tally::serve
