#include "measure/client.h"

#include "base/settings.h"
#include "base/utf8.h"
#include "measure/wire.h"

#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/parser.hpp>
#include <utility>

namespace tally::measure {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using base::Error;
using base::ErrorCode;
using base::Result;
using boost::system::error_code;
using tcp = asio::ip::tcp;

constexpr size_t kReadBytes = 64 * 1024;
constexpr size_t kUnparsedBytesMax = 64 * 1024;  // of a head, or of the line before a chunk
constexpr uint32_t kHeadBytesMax = 32 * 1024;
constexpr size_t kAnswerBytesMax = size_t{64} << 20;

// Hands the body on as it comes.
struct Passage {
  ExchangeSink* sink = nullptr;
  Instant at;
  bool is_enough = false;
};
struct PassingBody {
  using value_type = Passage;
  class reader {
   public:
    template <bool kIsRequest, class Fields>
    reader(const http::header<kIsRequest, Fields>&, value_type& passage) : passage_(passage) {}

    void init(const boost::optional<uint64_t>&, error_code& ec) { ec = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& ec) {
      ec = {};
      size_t bytes = 0;
      for (const asio::const_buffer buffer : boost::beast::buffers_range_ref(buffers)) {
        bytes += buffer.size();
        if (!passage_.is_enough)
          passage_.is_enough =
              !passage_.sink->on_body({static_cast<const char*>(buffer.data()), buffer.size()}, passage_.at);
      }
      return bytes;
    }
    void finish(error_code& ec) { ec = {}; }

   private:
    value_type& passage_;
  };
};

Error bad_url(const std::string& url) {
  return {ErrorCode::kUsage,
          fmt::format("{}: not a URL of a server; allowed: http://HOST[:PORT][/PATH], or https",
                      base::escape_for_log(url, 80))};
}

constexpr std::string_view kPlainScheme = "http://", kTlsScheme = "https://";

// The answer of a call, whole.
class Collector final : public ExchangeSink {
 public:
  void on_sent(Instant) override {}
  void on_head(int status, std::string_view) override { answer.status = status; }
  bool on_body(std::string_view bytes, Instant) override {
    if (answer.body.size() + bytes.size() > kAnswerBytesMax) is_too_long = true;
    if (!is_too_long) answer.body += bytes;
    return !is_too_long;
  }
  void on_end(std::string_view failed, Instant) override { failure = failed; }

  Answer answer;
  std::string failure;
  bool is_too_long = false;
};

}  // namespace

Result<Endpoint> resolve(const std::string& url, const std::string& api_key) {
  const bool is_tls = url.starts_with(kTlsScheme);
  if (!is_tls && !url.starts_with(kPlainScheme)) return bad_url(url);
  const size_t scheme = (is_tls ? kTlsScheme : kPlainScheme).size(), slash = url.find('/', scheme);
  std::string_view authority = std::string_view(url).substr(scheme, slash - scheme);
  Endpoint out;
  out.api_key = api_key;
  if (slash != std::string::npos) out.prefix = url.substr(slash);
  while (out.prefix.ends_with('/')) out.prefix.pop_back();
  // "…/v1" is how clients of OpenAI write a base URL.
  if (out.prefix.ends_with("/v1")) out.prefix.resize(out.prefix.size() - 3);
  const auto is_plain = [](char c) { return c > ' ' && c < 127; };
  for (const char c : url)
    if (!is_plain(c)) return bad_url(url);
  out.host = authority;
  std::string name(authority), port = is_tls ? "443" : "80";
  const size_t colon = authority.rfind(':');
  if (colon != std::string_view::npos && authority.find(']', colon) == std::string_view::npos) {
    name = authority.substr(0, colon), port = authority.substr(colon + 1);
    const auto number = base::parse_uint(port);
    if (!number || *number == 0 || *number > 65535) return bad_url(url);
  }
  if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
  if (name.empty()) return bad_url(url);
  asio::io_context io;
  tcp::resolver resolver(io);
  error_code ec;
  const auto found = resolver.resolve(name, port, ec);
  if (ec || found.empty())
    return Error{ErrorCode::kUnavailable, fmt::format("{}: {}", base::escape_for_log(url, 80), ec.message())};
  out.address = *found.begin();
  if (is_tls) {
    TALLY_TRY(out.tls, client_tls());
  }
  asio::ip::make_address(name, ec);
  out.is_name_an_address = !ec;
  out.name = name;
  return out;
}

std::string request_bytes(const Endpoint& endpoint, const Message& message) {
  std::string out = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}\r\nUser-Agent: tally-bench\r\n", message.method,
                                endpoint.prefix, message.path, endpoint.host);
  if (!endpoint.api_key.empty()) out += fmt::format("Authorization: Bearer {}\r\n", endpoint.api_key);
  if (message.is_stream) out += "Accept: text/event-stream\r\n";
  if (message.method != "GET")
    out += fmt::format("Content-Type: application/json\r\nContent-Length: {}\r\n", message.body.size());
  out += "\r\n";
  out += message.body;
  return out;
}

struct Connection::Parser {
  http::response_parser<PassingBody> http;  // stops behind the head, which is told before any body

  Parser() {
    http.header_limit(kHeadBytesMax);
    http.body_limit(boost::none);  // sinks count
  }
};

std::shared_ptr<Connection> Connection::create(asio::io_context& io, const Endpoint& endpoint) {
  std::unique_ptr<Connection> connection(new Connection(io, endpoint));
  return connection;
}

Connection::Connection(asio::io_context& io, const Endpoint& endpoint)
    : wire_(std::make_unique<Wire>(io, endpoint)), timer_(io) {
  buffer_.reserve(kReadBytes + kUnparsedBytesMax);
}

Connection::~Connection() = default;

void Connection::start(const std::string& request, ExchangeSink& sink, Duration timeout) {
  TALLY_CHECK(sink_ == nullptr, "two exchanges on a connection");
  ++exchange_;
  request_ = &request, sink_ = &sink;
  has_answer_ = false;
  parser_ = std::make_unique<Parser>();
  parser_->http.get().body().sink = &sink;
  set_deadline(timeout);
  is_reused_ = wire_->is_open();
  is_reused_ ? write() : connect();
}

void Connection::set_deadline(Duration from_now) {
  timer_.expires_after(from_now);
  timer_.async_wait([self = shared_from_this(), exchange = exchange_](const error_code& ec) {
    if (!ec && self->is_busy() && exchange == self->exchange_) self->give_up("timeout");
  });
}

void Connection::give_up(std::string_view failure) {
  if (!is_busy()) return;
  wire_->close();
  finish(failure, std::chrono::steady_clock::now());
}

void Connection::connect() {
  is_reused_ = false;
  buffer_.clear();
  wire_->open([self = shared_from_this(), exchange = exchange_](const error_code& ec) {
    if (exchange != self->exchange_ || !self->is_busy()) return;
    if (ec) return self->give_up(fmt::format("connect: {}", ec.message()));
    self->write();
  });
}

void Connection::write() {
  sink_->on_sent(std::chrono::steady_clock::now());
  wire_->write(asio::buffer(*request_),
               [self = shared_from_this(), exchange = exchange_](const error_code& ec, size_t) {
                 if (exchange != self->exchange_ || !self->is_busy()) return;
                 ec ? self->lost(ec, std::chrono::steady_clock::now()) : self->read();
               });
}

void Connection::read() {
  wire_->read_some(buffer_.prepare(kReadBytes),
                   [self = shared_from_this(), exchange = exchange_](const error_code& ec, size_t bytes) {
                     const Instant at = std::chrono::steady_clock::now();
                     if (exchange != self->exchange_ || !self->is_busy()) return;
                     if (ec) return self->lost(ec, at);
                     self->buffer_.commit(bytes);
                     self->feed(at);
                   });
}

void Connection::feed(Instant at) {
  has_answer_ = true;
  auto& parser = parser_->http;
  Passage& passage = parser.get().body();
  passage.at = at;
  while (buffer_.size() > 0) {
    error_code ec;
    const size_t used = parser.put(buffer_.data(), ec);
    buffer_.consume(used);
    if (parser.is_header_done() && !parser.eager()) {
      parser.eager(true);
      const auto& head = parser.get();
      const auto type = head[http::field::content_type];
      sink_->on_head(static_cast<int>(head.result_int()), {type.data(), type.size()});
    }
    if (passage.is_enough) return give_up("");
    if (parser.is_done()) {
      if (!parser.keep_alive() || buffer_.size() > 0) wire_->close();
      return finish("", at);
    }
    if (ec == http::error::need_more || (!ec && used == 0)) break;
    if (ec) return give_up(fmt::format("bad HTTP: {}", ec.message()));
  }
  if (buffer_.size() > kUnparsedBytesMax) return give_up("bad HTTP: a line without end");
  read();
}

void Connection::lost(const error_code& error, Instant at) {
  if (is_reused_ && !has_answer_) {  // kept too long: the server was free to close it
    wire_->close();
    return connect();
  }
  auto& parser = parser_->http;
  if (error == asio::error::eof && has_answer_ && parser.is_header_done() && parser.need_eof()) {
    error_code ec;
    parser.put_eof(ec);
    if (!ec) {
      wire_->close();
      return finish("", at);
    }
  }
  const bool is_closed = error == asio::error::eof || error == asio::ssl::error::stream_truncated;
  give_up(is_closed ? "closed early" : fmt::format("connection: {}", error.message()));
}

void Connection::finish(std::string_view failure, Instant at) {
  ++exchange_;
  timer_.cancel();
  std::exchange(sink_, nullptr)->on_end(failure, at);
}

Caller::Caller(const Endpoint& endpoint)
    : endpoint_(endpoint), connection_(Connection::create(io_, endpoint)) {}

Result<Answer> Caller::call(const Message& message, Duration timeout) {
  Collector collector;
  const std::string request = request_bytes(endpoint_, message);
  connection_->start(request, collector, timeout);
  io_.restart();
  io_.run();
  if (collector.is_too_long) collector.failure = fmt::format("more than {} bytes", kAnswerBytesMax);
  if (!collector.failure.empty())
    return Error{ErrorCode::kUnavailable, fmt::format("{}://{}{}{}: {}", endpoint_.scheme(), endpoint_.host,
                                                      endpoint_.prefix, message.path, collector.failure)};
  return std::move(collector.answer);
}

}  // namespace tally::measure
