#pragma once
// The way of events past the I/O thread: while nothing else of an exchange waits for the socket, the thread
// that makes an event writes it, and no thread is woken for that. What the socket does not take is handed
// over, and all that follows, until the I/O thread has written everything and opens the way again. Private to
// http/.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

namespace tally::serve::http {

class Shortcut {
 public:
  // What the I/O thread is to write instead. framed: as it is, else as a chunk.
  struct Rest {
    std::string bytes;
    bool framed = false;
  };

  // The maker of events, one thread at a time. Nothing: the socket has taken them.
  std::optional<Rest> send(std::string events);

  // I/O thread: nothing waits for the socket. Without effect while something is on its way here.
  void open(int socket, bool chunked);
  // I/O thread: what send() handed over is here.
  void arrived();
  // I/O thread: it writes, or closes the socket, from now on; no write is under way any more. False:
  // something is on its way here, and may be the rest of a chunk: nothing goes before it.
  bool close();
  // I/O thread: when the socket last took something this way; 0: never.
  int64_t sent_us() const { return sent_us_.load(std::memory_order_relaxed); }

 private:
  std::mutex mutex_;      // held over the write, so that the socket stays the same until it is done
  int socket_ = -1;       // guarded by mutex_; -1: closed
  bool chunked_ = false;  // guarded by mutex_
  size_t on_way_ = 0;     // guarded by mutex_: handed over, and not yet here
  std::atomic<int64_t> sent_us_{0};
};

}  // namespace tally::serve::http
