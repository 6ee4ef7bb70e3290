#include "serve/http/shortcut.h"

#include "base/clock.h"
#include "serve/http/head.h"

#include <sys/socket.h>

#include <utility>

namespace tally::serve::http {

std::optional<Shortcut::Rest> Shortcut::send(std::string events) {
  if (events.empty()) return std::nullopt;  // an empty chunk would be the last
  const std::lock_guard lock(mutex_);
  if (socket_ < 0) {
    ++on_way_;
    return Rest{std::move(events), false};
  }
  if (chunked_) {
    std::string chunk;
    append_chunk(chunk, events);
    events = std::move(chunk);
  }
  const ssize_t taken = ::send(socket_, events.data(), events.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (taken > 0) sent_us_.store(base::now_us(), std::memory_order_relaxed);
  if (taken == static_cast<ssize_t>(events.size())) return std::nullopt;
  if (taken > 0) events.erase(0, static_cast<size_t>(taken));
  socket_ = -1;  // of an error the I/O thread learns by its own write
  ++on_way_;
  return Rest{std::move(events), true};
}

void Shortcut::open(int socket, bool chunked) {
  const std::lock_guard lock(mutex_);
  if (on_way_ == 0) socket_ = socket, chunked_ = chunked;
}

void Shortcut::arrived() {
  const std::lock_guard lock(mutex_);
  --on_way_;
}

bool Shortcut::close() {
  const std::lock_guard lock(mutex_);
  socket_ = -1;
  return on_way_ == 0;
}

}  // namespace tally::serve::http
