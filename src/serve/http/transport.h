#pragma once
// Sockets: accepts connections, feeds the parser, carries answers. One I/O thread owns every socket and does
// nothing slow, so what a Site answers on it (the probes) is never late. Asio stays behind this header.

#include "base/result.h"
#include "serve/http/message.h"
#include "serve/server.h"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace tally::serve::http {

// Text that may wait for one socket; who writes more than that waits.
inline constexpr size_t kUnsentBytesMax = 256u << 10;

// One request and its answer. Exactly one of respond, send(.., last) and fail ends it; later ones are
// ignored. Threads: any.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const Request& request() const = 0;

  // The whole answer. HEAD sends its head only.
  virtual void respond(Response response) = 0;
  // An SSE answer will follow: its head (with these fields) goes with the first send, or after
  // WireLimits::heartbeat_ms.
  virtual void promise_stream(std::vector<Field> head) = 0;
  // Events, written at once. last: the answer is complete.
  virtual void send(std::string events, bool last) = 0;
  // A failure: `plain` if no head has been sent yet, else `events` and the end of the connection.
  virtual void fail(Response plain, std::string events) = 0;

  // Given to send and not yet taken by the socket.
  virtual size_t unsent_bytes() const = 0;
  // on_gone: the client has left (also if it already had). on_room: unsent_bytes has fallen below the limit
  // again. Both are called on the I/O thread and must not block; neither is called after the end of the
  // exchange.
  virtual void watch(std::function<void()> on_gone, std::function<void()> on_room) = 0;
  virtual bool gone() const = 0;
};

// What stands behind the transport. All calls come from the I/O thread and must not block.
class Site {
 public:
  virtual ~Site() = default;
  // The head is complete: take or make `request.id`, and refuse before the body is read, or let it come.
  virtual std::optional<Response> judge_head(Request& request) = 0;
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;
  // A request that could not be parsed, or was too slow: the answer to send before the connection closes.
  virtual Response refuse(int status, const std::string& message) = 0;
  // An answer was given to the socket (status and the request's path).
  virtual void answered(const Request& request, int status) = 0;
  virtual void tick(int64_t now_us) = 0;
};

enum class ConnectionState : uint8_t { kIdle, kReading, kRunning, kWriting };

struct TransportOptions {
  std::string host;
  uint16_t port = 0;
  WireLimits limits;
};

class Transport {
 public:
  // Binds and listens. Errors: kUnavailable (port taken), kConfig (no such address).
  static base::Result<std::unique_ptr<Transport>> bind(const TransportOptions& options, Site& site);
  virtual ~Transport() = default;

  virtual uint16_t port() const = 0;
  virtual bool loopback() const = 0;
  // The I/O thread's loop, until finish().
  virtual void run() = 0;
  // Stops accepting, closes idle connections, lets queued bytes out for a moment, then run returns. Any
  // thread.
  virtual void finish() = 0;
  // The next tick comes at once, and the others often: the end is awaited. Any thread.
  virtual void hurry() = 0;
  // Requests taken and not completely answered.
  virtual size_t open_exchanges() const = 0;
  // What connections hold of requests and answers, bytes; I/O thread.
  virtual size_t held_bytes() const = 0;
  // Connections now, by ConnectionState; any thread.
  virtual std::array<uint64_t, 4> connections() const = 0;
};

}  // namespace tally::serve::http
