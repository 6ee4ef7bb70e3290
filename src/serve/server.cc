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
    const int64_t now_us = base::now_us();
    lower(drain_us_, now_us);
    lower(end_us_, now_us + kEndGraceUs);
  }

  void stop() override {
    const int64_t now_us = base::now_us();
    const bool first = stops_.fetch_add(1) == 0;
    const int64_t drain_us = first ? now_us + int64_t{settings_.drain_timeout_ms} * 1000 : now_us;
    const auto desk = site_->desk();
    site_->set_health(Health::kDraining);
    lower(drain_us_, drain_us);
    lower(end_us_, !desk ? now_us : drain_us + (first ? kEngineGraceUs : kEndGraceUs));
    if (desk) stop_engine(*desk, now_us);
    transport_->hurry();
  }

 private:
  static void lower(std::atomic<int64_t>& time_us, int64_t to_us) {
    int64_t now = time_us.load();
    while (to_us < now && !time_us.compare_exchange_weak(now, to_us)) {
    }
  }

  // An engine that stops takes nobody in: until the drain deadline it waits for those who wait for their
  // constraint, each tick anew.
  void stop_engine(const Desk& desk, int64_t now_us) {
    const int64_t drain_us = drain_us_.load();
    if (now_us >= drain_us || !site_->is_compiling()) desk.backend.engine->stop(drain_us);
  }

  // Each tick, on the I/O thread: ends when asked to and nothing is open, or when the time is up.
  void look(int64_t now_us) {
    const int64_t end_us = end_us_.load();
    if (end_us == INT64_MAX) return;
    const auto desk = site_->desk();
    if (now_us >= drain_us_.load()) site_->end_compilations();
    if (desk && stops_.load() > 0) stop_engine(*desk, now_us);
    const bool idle = transport_->open_exchanges() == 0 && (!desk || desk->live() == 0);
    if (idle || now_us >= end_us) transport_->finish();
  }

  const Settings settings_;
  std::unique_ptr<http::Transport> transport_;
  std::unique_ptr<TallySite> site_;
  std::atomic<int> stops_{0};
  std::atomic<int64_t> drain_us_{INT64_MAX};  // until then requests go on
  std::atomic<int64_t> end_us_{INT64_MAX};    // then the transport ends, whoever is there
};

}  // namespace

base::Result<std::unique_ptr<Server>> Server::bind(const Settings& settings) {
  auto server = std::make_unique<TallyServer>(settings);
  TALLY_TRY_VOID(server->listen());
  return std::unique_ptr<Server>(std::move(server));
}

}  // namespace tally::serve
