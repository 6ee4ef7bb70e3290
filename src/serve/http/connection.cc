#include "serve/http/connection.h"

#include "base/clock.h"
#include "serve/http/head.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>

namespace tally::serve::http {
namespace asio = boost::asio;

namespace {

constexpr size_t kPipelinedBytesMax = 64u << 10;  // read ahead of the running request; unparsed
constexpr int64_t kLingerUs = 2'000'000;
constexpr uint64_t kBodyBytesPerSecondMin = 1024;

}  // namespace

template <class F>
void LiveExchange::on_connection(F f) {
  asio::post(hub_.io, [self = shared_from_this(), f = std::move(f)]() mutable {
    const auto connection = self->connection_.lock();
    if (connection && !self->finished_ && !self->gone()) f(*connection, *self);
  });
}

void LiveExchange::respond(Response response) {
  on_connection([response = std::move(response)](Connection& c, LiveExchange& self) mutable {
    c.respond(self, std::move(response));
  });
}

void LiveExchange::promise_stream(std::vector<Field> head) {
  on_connection([head = std::move(head)](Connection& c, LiveExchange& self) mutable {
    c.promise(self, std::move(head));
  });
}

void LiveExchange::send(std::string events, bool last) {
  std::optional<Shortcut::Rest> rest = Shortcut::Rest{std::move(events), false};
  if (!last) rest = shortcut_.send(std::move(rest->bytes));
  if (!rest) return;
  unsent_.fetch_add(rest->bytes.size(), std::memory_order_relaxed);
  on_connection([rest = std::move(*rest), last](Connection& c, LiveExchange& self) {
    if (!last) self.shortcut_.arrived();
    c.send(self, rest, last);
  });
}

void LiveExchange::fail(Response plain, std::string events) {
  on_connection([plain = std::move(plain), events = std::move(events)](
                    Connection& c, LiveExchange& self) mutable { c.fail(self, std::move(plain), events); });
}

void LiveExchange::watch(std::function<void()> on_gone, std::function<void()> on_room) {
  {
    const std::lock_guard lock(mutex_);
    on_gone_ = std::move(on_gone);
    on_room_ = std::move(on_room);
  }
  if (gone()) leave();
}

// Each callback is called outside the lock and, being moved out, once.
void LiveExchange::leave() {
  gone_.store(true, std::memory_order_release);
  std::function<void()> on_gone;
  {
    const std::lock_guard lock(mutex_);
    on_gone.swap(on_gone_);
    on_room_ = nullptr;
  }
  if (on_gone) on_gone();
}

void LiveExchange::taken(size_t bytes) {
  queued_ -= bytes;
  const size_t before = unsent_.fetch_sub(bytes, std::memory_order_relaxed);
  if (before < kUnsentBytesMax / 2 || before - bytes >= kUnsentBytesMax / 2) return;
  std::function<void()> on_room;
  {
    const std::lock_guard lock(mutex_);
    on_room = on_room_;
  }
  if (on_room) on_room();
}

void LiveExchange::forget_callbacks() {
  const std::lock_guard lock(mutex_);
  on_gone_ = on_room_ = nullptr;
}

Connection::Connection(Hub& hub, asio::ip::tcp::socket socket, asio::ip::address address)
    : hub_(hub), socket_(std::move(socket)), address_(std::move(address)), parser_(hub.parse_limits) {}

void Connection::start() {
  phase_us_ = read_us_ = base::now_us();
  boost::system::error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
  read();
}

size_t Connection::held_bytes() const {
  return sizeof(*this) + in_.capacity() + out_.capacity() + sending_.capacity() +
         parser_.request().body.capacity() + (exchange_ ? exchange_->request().body.capacity() : 0);
}

ConnectionState Connection::state() const {
  if (has_output()) return ConnectionState::kWriting;
  if (phase_ == Phase::kRunning) return ConnectionState::kRunning;
  return phase_ == Phase::kHead && parser_.fresh() ? ConnectionState::kIdle : ConnectionState::kReading;
}

// A read is always pending, so that the end of the peer is seen; but for pipelined input beyond its limit,
// when tick() looks.
void Connection::read() {
  const bool full =
      in_.size() >= kPipelinedBytesMax && (phase_ == Phase::kRunning || phase_ == Phase::kFlushing);
  if (reading_ || ended_ || full || phase_ == Phase::kClosed) return;
  reading_ = true;
  socket_.async_read_some(
      asio::buffer(read_buffer_),
      [self = shared_from_this()](const auto& error, size_t bytes) { self->on_read(error, bytes); });
}

void Connection::on_read(const boost::system::error_code& error, size_t bytes) {
  reading_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) {
    ended_ = true;
    return leave();
  }
  read_us_ = base::now_us();
  if (phase_ != Phase::kLinger) {
    if (phase_ == Phase::kHead && parser_.fresh() && in_.empty() && requests_ > 0) phase_us_ = read_us_;
    in_.append(read_buffer_.data(), bytes);
    process();
  }
  read();
}

void Connection::process() {
  while (!in_.empty() && (phase_ == Phase::kHead || phase_ == Phase::kBody)) {
    const size_t used = parser_.feed(in_);
    in_.erase(0, used);
    if (phase_ == Phase::kBody) body_received_ += used;
    switch (parser_.state()) {
      case RequestParser::State::kError:
        return refuse(parser_.error().status, parser_.error().message);
      case RequestParser::State::kHead:
        break;
      case RequestParser::State::kBody:
        if (phase_ == Phase::kHead) after_head();
        break;
      case RequestParser::State::kDone:
        if (phase_ == Phase::kHead) after_head();
        if (phase_ == Phase::kHead || phase_ == Phase::kBody) run_request();
        break;
    }
  }
}

void Connection::after_head() {
  Request& request = parser_.request();
  if (std::optional<Response> early = hub_.site.judge_head(request)) {
    early->close = early->close || parser_.state() == RequestParser::State::kBody;
    hub_.site.answered(request, early->status);
    answer(*early, request.method == "HEAD");
    return complete(early->close || !request.keep_alive);
  }
  if (parser_.state() != RequestParser::State::kBody) return;
  if (request.ignores_body() && request.content_length.value_or(0) > hub_.parse_limits.ignored_body_bytes)
    return run_request();  // keep_alive is off: its body is never read
  phase_ = Phase::kBody;
  phase_us_ = base::now_us();
  body_received_ = 0;
  if (request.expect_continue && in_.empty()) {
    out_ += "HTTP/1.1 100 Continue\r\n\r\n";
    write();
  }
}

void Connection::run_request() {
  phase_ = Phase::kRunning;
  parser_.request().arrived_us = base::now_us();
  exchange_ = std::make_shared<LiveExchange>(hub_, weak_from_this(), std::move(parser_.request()));
  ++hub_.open_exchanges;
  hub_.site.handle(exchange_);
}

// A request that never became one.
void Connection::refuse(int status, const std::string& message) {
  const Response response = hub_.site.refuse(status, message);
  hub_.site.answered(parser_.request(), status);
  answer(response, false);
  complete(true);
}

void Connection::answer(const Response& response, bool head_only) {
  const bool last = requests_ + 1 >= hub_.limits.requests_per_connection;
  const Request& request = exchange_ ? exchange_->request() : parser_.request();
  const bool close = response.close || last || retired_ || !request.keep_alive ||
                     parser_.state() == RequestParser::State::kError;
  close_after_ = close_after_ || close;
  append_head(out_, response, {.close = close, .keep_alive_1_0 = !close && request.minor_version == 0});
  if (!head_only) out_ += response.body;
}

void Connection::respond(LiveExchange& exchange, Response response) {
  hub_.site.answered(exchange.request(), response.status);
  answer(response, exchange.request().method == "HEAD");
  exchange.finished_ = true;
  complete(response.close);
}

void Connection::promise(LiveExchange& exchange, std::vector<Field> head) {
  exchange.promised_ = true;
  exchange.head_ = std::move(head);
  event_us_ = base::now_us();
}

void Connection::commit(LiveExchange& exchange) {
  if (exchange.committed_) return;
  exchange.committed_ = true;
  hub_.site.answered(exchange.request(), 200);
  const Request& request = exchange.request();
  const bool chunked = request.minor_version == 1;
  const bool last = requests_ + 1 >= hub_.limits.requests_per_connection;
  close_after_ = close_after_ || !chunked || last || retired_ || !request.keep_alive;
  append_stream_head(out_, exchange.head_, {.close = close_after_, .chunked = chunked});
}

void Connection::add_chunk(LiveExchange& exchange, std::string_view data) {
  if (data.empty()) return;
  event_us_ = base::now_us();
  if (exchange.request().minor_version == 1)
    append_chunk(out_, data);
  else
    out_ += data;
}

void Connection::send(LiveExchange& exchange, const Shortcut::Rest& events, bool last) {
  exchange.shortcut_.close();
  commit(exchange);
  exchange.queued_ += events.bytes.size();
  if (events.framed)
    out_ += events.bytes;
  else
    add_chunk(exchange, events.bytes);
  if (last) {
    if (exchange.request().minor_version == 1) out_ += "0\r\n\r\n";
    exchange.finished_ = true;
    return complete(false);
  }
  write();
}

void Connection::fail(LiveExchange& exchange, Response plain, const std::string& events) {
  if (!exchange.committed_) return respond(exchange, std::move(plain));
  exchange.shortcut_.close();
  add_chunk(exchange, events);
  if (exchange.request().minor_version == 1) out_ += "0\r\n\r\n";
  exchange.finished_ = true;
  complete(true);
}

// The answer's last byte is queued.
void Connection::complete(bool close) {
  close_after_ = close_after_ || close;
  ++requests_;
  if (exchange_) exchange_->forget_callbacks();
  phase_ = Phase::kFlushing;
  phase_us_ = base::now_us();
  write();
}

void Connection::write() {
  if (writing_ || phase_ == Phase::kClosed) return;
  if (out_.empty() && sent_ == sending_.size()) return flushed();
  if (sent_ == sending_.size()) {
    sending_.clear();
    sending_.swap(out_);
    sent_ = 0;
    write_us_ = base::now_us();
  }
  writing_ = true;
  socket_.async_write_some(
      asio::buffer(sending_.data() + sent_, sending_.size() - sent_),
      [self = shared_from_this()](const auto& error, size_t bytes) { self->on_write(error, bytes); });
}

void Connection::on_write(const boost::system::error_code& error, size_t bytes) {
  writing_ = false;
  if (phase_ == Phase::kClosed) return;
  if (error) {
    ended_ = true;
    sending_.clear();
    out_.clear();
    sent_ = 0;
    return leave();
  }
  write_us_ = base::now_us();
  sent_ += bytes;
  const size_t waiting = out_.size() + sending_.size() - sent_;
  if (exchange_ && exchange_->queued_ > waiting) exchange_->taken(exchange_->queued_ - waiting);
  write();
}

void Connection::flushed() {
  if (phase_ == Phase::kRunning && exchange_->committed_)
    exchange_->shortcut_.open(socket_.native_handle(), exchange_->request().minor_version == 1);
  if (phase_ != Phase::kFlushing) return;
  if (exchange_) {
    --hub_.open_exchanges;
    exchange_.reset();
  }
  if (ended_) return close();
  if (close_after_ || retired_) return linger();
  next_request();
}

void Connection::next_request() {
  parser_.restart();
  phase_ = Phase::kHead;
  phase_us_ = base::now_us();
  // From a fresh stack: a thousand pipelined requests must not nest.
  asio::post(hub_.io, [self = shared_from_this()] {
    if (self->phase_ != Phase::kHead) return;
    self->process();
    self->read();
  });
}

// The peer has gone, or has shut its side (which is the same to us).
void Connection::leave() {
  if (phase_ == Phase::kFlushing && has_output())
    return;  // a complete answer is on its way: flushed() closes
  if (exchange_) exchange_->leave();
  close();
}

void Connection::linger() {
  boost::system::error_code ignored;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  phase_ = Phase::kLinger;
  phase_us_ = base::now_us();
  in_.clear();
  read();
}

void Connection::retire() {
  retired_ = true;
  if (phase_ == Phase::kHead || phase_ == Phase::kBody || phase_ == Phase::kLinger) close();
}

void Connection::close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  if (exchange_) {
    --hub_.open_exchanges;
    const auto exchange = std::move(exchange_);
    exchange->shortcut_.close();
    if (!exchange->finished_) exchange->leave();
  }
  boost::system::error_code ignored;
  socket_.close(ignored);
}

const char* Connection::overdue(int64_t now_us) const {
  const WireLimits& limits = hub_.limits;
  const auto passed = [now_us](int64_t since, uint32_t ms) { return now_us - since > int64_t{ms} * 1000; };
  if (phase_ == Phase::kHead && requests_ > 0 && parser_.fresh())
    return passed(phase_us_, limits.idle_timeout_ms) ? "" : nullptr;
  if (phase_ == Phase::kHead)
    return passed(phase_us_, limits.head_timeout_ms) ? "The request head did not come in time." : nullptr;
  if (phase_ == Phase::kBody) {
    if (passed(read_us_, limits.body_gap_ms)) return "The request body stopped coming.";
    const int64_t late_us = now_us - phase_us_ - int64_t{limits.body_grace_ms} * 1000;
    if (late_us > 0 &&
        body_received_ < kBodyBytesPerSecondMin * static_cast<uint64_t>(late_us) / 1'000'000 + 1)
      return "The request body comes too slowly.";
  }
  return nullptr;
}

void Connection::tick(int64_t now_us) {
  if (phase_ == Phase::kClosed) return;
  if (const char* late = overdue(now_us)) return *late ? refuse(408, late) : close();
  if (phase_ == Phase::kLinger) {
    if (now_us - phase_us_ > kLingerUs) close();
    return;
  }
  if (writing_ && now_us - write_us_ > int64_t{hub_.limits.write_stall_ms} * 1000) {
    if (exchange_) exchange_->leave();
    return close();
  }
  if (phase_ == Phase::kRunning && exchange_->promised_ &&
      now_us - std::max(event_us_, exchange_->shortcut_.sent_us()) >=
          int64_t{hub_.limits.heartbeat_ms} * 1000)
    beat(now_us);
  if (phase_ == Phase::kRunning && !reading_ && peer_has_hung_up()) leave();
}

// Something for a client, and what is between, that waits for the next event.
void Connection::beat(int64_t now_us) {
  event_us_ = now_us;
  if (!exchange_->shortcut_.close()) return;  // an event is coming
  if (exchange_->committed_)
    add_chunk(*exchange_, "\n");
  else
    commit(*exchange_);
  write();
}

bool Connection::peer_has_hung_up() {
  pollfd poll_fd{socket_.native_handle(), POLLRDHUP, 0};
  return ::poll(&poll_fd, 1, 0) > 0 && (poll_fd.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace tally::serve::http
