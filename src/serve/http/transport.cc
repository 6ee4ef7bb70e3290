#include "serve/http/transport.h"

#include "base/clock.h"
#include "base/utf8.h"
#include "serve/http/connection.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

namespace tally::serve::http {
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

constexpr size_t kConnectionsPerAddress = 1024;  // on binds that strangers can reach
constexpr rlim_t kSpareFiles = 64;
constexpr auto kAcceptBackOff = std::chrono::milliseconds(50);
constexpr int64_t kFinishUs = 500'000;

// The soft limit on open files raised to the hard one; how many connections that leaves.
size_t connections_allowed(size_t wanted) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return wanted;
  if (files.rlim_cur < files.rlim_max) {
    files.rlim_cur = files.rlim_max;
    if (::setrlimit(RLIMIT_NOFILE, &files) != 0) ::getrlimit(RLIMIT_NOFILE, &files);
  }
  const rlim_t room = files.rlim_cur > kSpareFiles ? files.rlim_cur - kSpareFiles : 1;
  return std::min<rlim_t>(wanted, room);
}

constexpr std::chrono::milliseconds kHurriedTick{5};

std::chrono::milliseconds tick_period(const WireLimits& l) {
  const uint32_t shortest = std::min({l.head_timeout_ms, l.body_gap_ms, l.idle_timeout_ms, l.write_stall_ms,
                                      l.body_grace_ms, l.heartbeat_ms});
  return std::chrono::milliseconds(std::clamp(shortest / 10, 5u, 100u));
}

class AsioTransport final : public Transport {
 public:
  AsioTransport(const TransportOptions& options, Site& site)
      : hub_{.site = site,
             .limits = options.limits,
             .parse_limits = {options.limits.request_line_bytes, options.limits.header_bytes,
                              options.limits.header_fields, options.limits.body_bytes}},
        acceptor_(hub_.io),
        tick_timer_(hub_.io),
        accept_timer_(hub_.io),
        tick_period_(tick_period(options.limits)),
        connections_max_(connections_allowed(options.limits.connections)),
        spare_fd_(::open("/dev/null", O_RDONLY | O_CLOEXEC)) {}

  ~AsioTransport() override {
    if (spare_fd_ >= 0) ::close(spare_fd_);
  }

  base::Result<void> listen(const TransportOptions& options) {
    boost::system::error_code error;
    tcp::resolver resolver(hub_.io);
    const auto found =
        resolver.resolve(options.host, std::to_string(options.port), tcp::resolver::passive, error);
    if (error || found.empty())
      return base::Error{base::ErrorCode::kConfig, "--host " + base::escape_for_log(options.host, 64) +
                                                       " is no address of this machine"};
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error)
      return base::Error{base::ErrorCode::kUnavailable, "--port " + std::to_string(options.port) + " on " +
                                                            endpoint.address().to_string() + ": " +
                                                            error.message()};
    acceptor_.non_blocking(true, error);
    port_ = acceptor_.local_endpoint(error).port();
    loopback_ = endpoint.address().is_loopback();
    return {};
  }

  uint16_t port() const override { return port_; }
  bool loopback() const override { return loopback_; }
  size_t open_exchanges() const override { return hub_.open_exchanges; }

  size_t held_bytes() const override {
    size_t bytes = 0;
    for (const auto& connection : connections_) bytes += connection->held_bytes();
    return bytes;
  }

  std::array<uint64_t, 4> connections() const override {
    std::array<uint64_t, 4> out{};
    for (size_t i = 0; i < out.size(); ++i) out[i] = by_state_[i].load(std::memory_order_relaxed);
    return out;
  }

  void run() override {
    accept();
    tick();
    hub_.io.run();
    for (const auto& connection : connections_) connection->close();
    connections_.clear();
  }

  void finish() override {
    asio::post(hub_.io, [this] {
      if (hub_.finishing) return;
      hub_.finishing = true;
      finish_us_ = base::now_us();
      boost::system::error_code ignored;
      acceptor_.close(ignored);
      for (const auto& connection : connections_) connection->retire();
      tick_now();
    });
  }

  void hurry() override {
    asio::post(hub_.io, [this] {
      tick_period_ = kHurriedTick;
      tick_now();
    });
  }

 private:
  void accept() {
    acceptor_.async_accept([this](const boost::system::error_code& error, tcp::socket socket) {
      if (hub_.finishing) return;
      if (error) return accept_failed(error);
      add(std::move(socket));
      accept();
    });
  }

  // Out of files: a spare one is given up for a moment to accept the caller and close on him, else he would
  // wait for ever and the listening socket would stay readable. Then a pause, so that this never spins.
  void accept_failed(const boost::system::error_code& error) {
    if (error == asio::error::no_descriptors && spare_fd_ >= 0) {
      ::close(spare_fd_);
      const int fd = ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) ::close(fd);
      spare_fd_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    accept_timer_.expires_after(kAcceptBackOff);
    accept_timer_.async_wait([this](const boost::system::error_code& stopped) {
      if (!stopped && !hub_.finishing) accept();
    });
  }

  void add(tcp::socket socket) {
    boost::system::error_code error;
    const auto address = socket.remote_endpoint(error).address();
    if (error || connections_.size() >= connections_max_) return;  // the socket closes here
    if (!loopback_) {
      size_t same = 0;
      for (const auto& connection : connections_) same += connection->address() == address;
      if (same >= kConnectionsPerAddress) return;
    }
    connections_.push_back(std::make_shared<Connection>(hub_, std::move(socket), address));
    connections_.back()->start();
  }

  // Besides the one that the timer has in hand, which is put off.
  void tick_now() {
    tick_timer_.cancel();
    tick();
  }

  void tick() {
    const int64_t now_us = base::now_us();
    std::array<uint64_t, 4> by_state{};
    bool output = false;
    for (const auto& connection : connections_) {
      connection->tick(now_us);
      if (connection->closed()) continue;
      ++by_state[static_cast<size_t>(connection->state())];
      output = output || connection->has_output();
    }
    std::erase_if(connections_, [](const auto& connection) { return connection->closed(); });
    for (size_t i = 0; i < by_state.size(); ++i) by_state_[i].store(by_state[i], std::memory_order_relaxed);
    hub_.site.tick(now_us);
    if (hub_.finishing && (!output || now_us - finish_us_ > kFinishUs)) return hub_.io.stop();
    tick_timer_.expires_after(hub_.finishing ? kHurriedTick : tick_period_);
    tick_timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error) tick();
    });
  }

  Hub hub_;
  tcp::acceptor acceptor_;
  asio::steady_timer tick_timer_, accept_timer_;
  std::chrono::milliseconds tick_period_;
  const size_t connections_max_;
  int spare_fd_;
  uint16_t port_ = 0;
  bool loopback_ = true;
  int64_t finish_us_ = 0;
  std::vector<std::shared_ptr<Connection>> connections_;
  std::array<std::atomic<uint64_t>, 4> by_state_{};
};

}  // namespace

base::Result<std::unique_ptr<Transport>> Transport::bind(const TransportOptions& options, Site& site) {
  auto transport = std::make_unique<AsioTransport>(options, site);
  TALLY_TRY_VOID(transport->listen(options));
  return std::unique_ptr<Transport>(std::move(transport));
}

}  // namespace tally::serve::http
