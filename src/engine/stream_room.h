#pragma once
// How many bytes answers may hold: promised at the door for all that they may come to, booked as it is
// written, and given back where the memory is, by whoever lets go of it last. (Private to the room.)

#include "base/accounts.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

namespace tally::engine {

inline constexpr std::string_view kStreamPart = "token streams";

// Threads: any. Shared by the engine and by every answer that holds something, which may outlive it.
class StreamRoom {
 public:
  // Books under `accounts`, until close().
  StreamRoom(base::Accounts& accounts, uint64_t bytes_max) : bytes_max_(bytes_max), accounts_(&accounts) {}

  uint64_t bytes_max() const { return bytes_max_; }
  uint64_t promised() const { return promised_.load(std::memory_order_relaxed); }
  // What may be promised now. Only the engine's door promises more, so what fits there still fits when it is
  // taken.
  uint64_t left() const { return bytes_max_ - promised(); }
  // The accounts may end from now on.
  void close();

 private:
  friend class StreamShare;
  void book(int64_t bytes);

  const uint64_t bytes_max_;
  std::atomic<uint64_t> promised_{0};
  std::mutex mutex_;
  base::Accounts* accounts_;  // guarded by mutex_; null: closed
};

// A part of it. Threads: one at a time.
class StreamShare {
 public:
  StreamShare() = default;  // of nothing, and books nothing
  // Requires: they fit.
  StreamShare(std::shared_ptr<StreamRoom> room, uint64_t promised);
  StreamShare(StreamShare&& other) noexcept { *this = std::move(other); }
  StreamShare& operator=(StreamShare&& other) noexcept;
  ~StreamShare() { give_back(); }

  // So much of it is written by now.
  void use(uint64_t bytes);
  // No more will be: what is not in use is given back.
  void settle();
  void give_back();

 private:
  std::shared_ptr<StreamRoom> room_;
  uint64_t promised_ = 0, used_ = 0;
};

}  // namespace tally::engine
