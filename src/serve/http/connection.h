#pragma once
// One connection: a state machine driven by reads, writes, answers and the clock. Private to http/ (it
// includes Asio).
//
// Every member function runs on the I/O thread; events can pass it by the exchange's Shortcut. Phases: kHead
// (between requests too) -> kBody -> kRunning -> kFlushing, and back to kHead; or kLinger, when the last
// bytes are out and the peer may still be sending.

#include "serve/http/parser.h"
#include "serve/http/shortcut.h"
#include "serve/http/transport.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace tally::serve::http {

class Connection;

// What connections share with their server, which outlives every thread that holds an exchange.
struct Hub {
  Site& site;
  WireLimits limits;
  ParseLimits parse_limits;
  boost::asio::io_context io{1};
  size_t open_exchanges = 0;  // I/O thread only
  bool finishing = false;
};

class LiveExchange final : public Exchange, public std::enable_shared_from_this<LiveExchange> {
 public:
  LiveExchange(Hub& hub, std::weak_ptr<Connection> connection, Request request)
      : hub_(hub), connection_(std::move(connection)), request_(std::move(request)) {}

  const Request& request() const override { return request_; }
  void respond(Response response) override;
  void promise_stream(std::vector<Field> head) override;
  void send(std::string events, bool last) override;
  void fail(Response plain, std::string events) override;
  size_t unsent_bytes() const override { return unsent_.load(std::memory_order_relaxed); }
  void watch(std::function<void()> on_gone, std::function<void()> on_room) override;
  bool gone() const override { return gone_.load(std::memory_order_acquire); }

  // For Connection.
  void leave();              // the client has gone
  void taken(size_t bytes);  // by the socket
  void forget_callbacks();

 private:
  friend class Connection;
  template <class F>
  void on_connection(F f);

  Hub& hub_;
  const std::weak_ptr<Connection> connection_;
  const Request request_;
  std::atomic<size_t> unsent_{0};
  std::atomic<bool> gone_{false};
  Shortcut shortcut_;
  std::mutex mutex_;
  std::function<void()> on_gone_, on_room_;  // guarded by mutex_
  // I/O thread only:
  bool finished_ = false, promised_ = false, committed_ = false;
  std::vector<Field> head_;
  size_t queued_ = 0;  // bytes of events in the connection's buffers
};

class Connection final : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Hub& hub, boost::asio::ip::tcp::socket socket, boost::asio::ip::address address);

  const boost::asio::ip::address& address() const { return address_; }
  void start();
  void tick(int64_t now_us);
  void close();
  // No more requests: closes now if idle, else after the answer.
  void retire();
  bool closed() const { return phase_ == Phase::kClosed; }
  bool has_output() const { return writing_ || !out_.empty(); }
  ConnectionState state() const;
  size_t held_bytes() const;  // of requests and answers

  // Called by LiveExchange.
  void respond(LiveExchange& exchange, Response response);
  void send(LiveExchange& exchange, const Shortcut::Rest& events, bool last);
  void fail(LiveExchange& exchange, Response plain, const std::string& events);
  void promise(LiveExchange& exchange, std::vector<Field> head);

 private:
  enum class Phase : uint8_t { kHead, kBody, kRunning, kFlushing, kLinger, kClosed };

  void read();
  void on_read(const boost::system::error_code& error, size_t bytes);
  void process();
  void after_head();
  void run_request();
  void refuse(int status, const std::string& message);
  void answer(const Response& response, bool head_only);
  void commit(LiveExchange& exchange);
  void add_chunk(LiveExchange& exchange, std::string_view data);
  void complete(bool close);
  void write();
  void on_write(const boost::system::error_code& error, size_t bytes);
  void flushed();
  void next_request();
  void leave();
  void linger();
  const char* overdue(int64_t now_us) const;
  void beat(int64_t now_us);
  bool peer_has_hung_up();

  Hub& hub_;
  boost::asio::ip::tcp::socket socket_;
  const boost::asio::ip::address address_;
  RequestParser parser_;
  Phase phase_ = Phase::kHead;
  std::shared_ptr<LiveExchange> exchange_;
  std::string in_, out_, sending_;
  std::array<char, 16384> read_buffer_;
  bool reading_ = false, writing_ = false, close_after_ = false, ended_ = false, retired_ = false;
  size_t requests_ = 0, sent_ = 0;
  // Clocks, base::now_us().
  int64_t phase_us_ = 0, read_us_ = 0, write_us_ = 0, event_us_ = 0;
  uint64_t body_received_ = 0;
};

}  // namespace tally::serve::http
