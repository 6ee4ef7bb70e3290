// HTTP/1.1 as a client, one exchange at a time on a connection that is kept: no thread, no copy of the body.
#pragma once

#include "base/result.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace boost::asio::ssl {
class context;
}

namespace tally::measure {

using Instant = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

inline double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline Duration duration(double s) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(s));
}

// Where a server listens, its name looked up.
struct Endpoint {
  std::string host;    // as the field Host wants it
  std::string prefix;  // of every path: "" or "/v2"
  boost::asio::ip::tcp::endpoint address;
  std::string api_key;                             // "": none
  std::shared_ptr<boost::asio::ssl::context> tls;  // null: plain HTTP
  std::string name;                                // of the host, which its certificate must be for
  bool is_name_an_address = false;

  const char* scheme() const { return tls == nullptr ? "http" : "https"; }

  bool is_loopback() const { return address.address().is_loopback(); }
};

// `url`: http://HOST[:PORT][/PATH], or https. Errors: kUsage for another form, kUnavailable where the name
// has no address.
base::Result<Endpoint> resolve(const std::string& url, const std::string& api_key);

struct Message {
  std::string_view method = "GET", path = "/", body;
  bool is_stream = false;  // the answer is to be a stream of events
};
std::string request_bytes(const Endpoint& endpoint, const Message& message);

// What a connection tells of one exchange, in this order.
class ExchangeSink {
 public:
  virtual void on_sent(Instant at) = 0;  // the first byte is written now; again after a reconnect
  virtual void on_head(int status, std::string_view content_type) = 0;
  virtual bool on_body(std::string_view bytes, Instant at) = 0;  // false: enough, give up the connection
  // Once. `failure`: "" when the answer is whole or was enough. The sink may start the next exchange.
  virtual void on_end(std::string_view failure, Instant at) = 0;

 protected:
  ~ExchangeSink() = default;
};

class Wire;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  static std::shared_ptr<Connection> create(boost::asio::io_context& io, const Endpoint& endpoint);
  ~Connection();

  // Connect if need be, send `request`, read the answer. A kept connection that the server closed meanwhile
  // is opened once more. Requires: no exchange is under way; `request` and `sink` live until on_end.
  void start(const std::string& request, ExchangeSink& sink, Duration timeout);
  // Another deadline for the exchange under way.
  void set_deadline(Duration from_now);
  // End the exchange under way with this failure ("": what came was enough).
  void give_up(std::string_view failure);
  bool is_busy() const { return sink_ != nullptr; }

 private:
  struct Parser;
  Connection(boost::asio::io_context& io, const Endpoint& endpoint);

  void connect();
  void write();
  void read();
  void feed(Instant at);
  void lost(const boost::system::error_code& error, Instant at);
  void finish(std::string_view failure, Instant at);

  std::unique_ptr<Wire> wire_;
  boost::asio::steady_timer timer_;
  boost::beast::flat_buffer buffer_;
  std::unique_ptr<Parser> parser_;
  const std::string* request_ = nullptr;
  ExchangeSink* sink_ = nullptr;  // null: idle
  uint64_t exchange_ = 0;         // a completion of an earlier one is no news
  bool is_reused_ = false, has_answer_ = false;
};

// Calls that wait for their answer, before and after what is measured.
struct Answer {
  int status = 0;
  std::string body;
};
class Caller {
 public:
  explicit Caller(const Endpoint& endpoint);
  // Errors: kUnavailable with what happened; an answer of any status is none.
  base::Result<Answer> call(const Message& message, Duration timeout = std::chrono::seconds(10));

 private:
  const Endpoint& endpoint_;
  boost::asio::io_context io_{1};
  std::shared_ptr<Connection> connection_;
};

}  // namespace tally::measure
