#include "serve/server.h"

#include "base/clock.h"
#include "serve/http/transport.h"
#include "serve/site.h"

namespace tally::serve {
namespace {

constexpr int64_t kEndGraceUs = 800'000;       // for the last frames, once everything was told to end
constexpr int64_t kEngineGraceUs = 2'000'000;  // for the engine to end its sequences after the drain deadline
constexpr int kExitFailed = 70;

class TallyServer final : public Server {
 public:
  explicit TallyServer(const Settings& settings)
      : settings_(settings), site_(std::make_unique<TallySite>(settings_)) {}

  base::Result<void> listen() {
    TALLY_TRY(transport_, http::Transport::bind({settings_.host, settings_.port, settings_.limits}, *site_));
    site_->attach(*transport_);
    site_->on_tick = [this](int64_t now_us) { look(now_us); };
    return {};
  }

  ~TallyServer() override {
    site_.reset();  // ends the workers, which use the transport
  }

  uint16_t port() const override { return transport_->port(); }

  int run() override {
    transport_->run();
    site_->end_tasks();
    return site_->health() == Health::kFailed ? kExitFailed : 0;
  }

  void set_backend(const Backend& backend) override {
    site_->set_backend(backend);
    if (stops_.load() > 0) backend.engine->stop(base::now_us());
  }

  void set_failed() override {
    site_->set_health(Health::kFailed);
    end_by(base::now_us() + kEndGraceUs);
  }

  void stop() override {
    const int64_t now_us = base::now_us();
    const bool first = stops_.fetch_add(1) == 0;
    const int64_t drain_us = first ? now_us + int64_t{settings_.drain_timeout_ms} * 1000 : now_us;
    const auto desk = site_->desk();
    site_->set_health(Health::kDraining);
    end_by(!desk ? now_us : drain_us + (first ? kEngineGraceUs : kEndGraceUs));
    if (desk) desk->backend.engine->stop(drain_us);
  }

 private:
  void end_by(int64_t deadline_us) {
    int64_t now = end_us_.load();
    while (deadline_us < now && !end_us_.compare_exchange_weak(now, deadline_us)) {
    }
  }

  // Each tick, on the I/O thread: ends when asked to and nothing is open, or when the time is up.
  void look(int64_t now_us) {
    const int64_t end_us = end_us_.load();
    if (end_us == INT64_MAX) return;
    const auto desk = site_->desk();
    const bool idle = transport_->open_exchanges() == 0 && (!desk || desk->live() == 0);
    if (idle || now_us >= end_us) transport_->finish();
  }

  const Settings settings_;
  std::unique_ptr<http::Transport> transport_;
  std::unique_ptr<TallySite> site_;
  std::atomic<int> stops_{0};
  std::atomic<int64_t> end_us_{INT64_MAX};
};

}  // namespace

base::Result<std::unique_ptr<Server>> Server::bind(const Settings& settings) {
  auto server = std::make_unique<TallyServer>(settings);
  TALLY_TRY_VOID(server->listen());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace tally::serve
