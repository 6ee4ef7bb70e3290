#pragma once
// Law 2: every allocation that can exceed 1 MiB or grows with load comes from a named account, planned
// before, capped, counted. Threads: all functions of Accounts may be called from any thread.

#include "base/pool.h"
#include "base/result.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tally::base {

enum class Account : uint8_t { kWeights, kKv, kActivations, kRuntime };
inline constexpr size_t kAccountCount = 4;
std::string_view account_name(Account account);  // "weights", "kv", …

// A sub-account. Bytes, and how often it was added to.
struct AccountPart {
  std::string name;
  uint64_t planned = 0, reserved = 0, peak = 0, bookings = 0;
};
struct AccountUse {
  uint64_t planned = 0, reserved = 0, used = 0, peak = 0;  // bytes
  std::vector<AccountPart> parts;
};

class Arena;

// Who touches an arena's pages first. The kernel zeroes each then, about a second a GiB and thread.
enum class FirstTouch : uint8_t { kNow, kByOwner };

class Accounts {
 public:
  explicit Accounts(uint64_t cap_bytes) : cap_bytes_(cap_bytes) {}

  uint64_t cap_bytes() const { return cap_bytes_; }
  void plan(Account account, std::string_view part, uint64_t bytes);
  // What reserve() books for so many bytes: whole pages.
  static uint64_t arena_bytes(uint64_t bytes);
  // Maps a huge-page arena and books it. With kByOwner the caller writes all of it at once, or calls touch().
  // Errors: kUnavailable if the cap would be passed or the kernel refuses.
  Result<Arena> reserve(Account account, std::string_view part, size_t bytes,
                        FirstTouch first_touch = FirstTouch::kNow);
  // Books bytes that were allocated elsewhere (tokenizer tables); never refuses below the cap.
  void book(Account account, std::string_view part, int64_t bytes);
  void set_used(Account account, uint64_t bytes);

  AccountUse use(Account account) const;
  uint64_t reserved_bytes() const;  // of all accounts

 private:
  friend class Arena;
  // Adds to an account and a part of it. Requires: mutex_ is held.
  void add(Account account, std::string_view part, int64_t bytes);
  const uint64_t cap_bytes_;
  mutable std::mutex mutex_;
  std::array<AccountUse, kAccountCount> state_;  // guarded by mutex_
};

// Anonymous memory aligned to 2 MiB, with huge pages asked for, zero at first. Returned to the kernel and the
// account on destruction.
class Arena {
 public:
  Arena() = default;
  Arena(Arena&& other) noexcept { *this = std::move(other); }
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  // Touches every page, on all threads of the pool. `progress(touched bytes)` is asked every 256 MiB and may
  // say false: stop; the result is what it said.
  bool touch(ThreadPool& pool, const std::function<bool(uint64_t)>& progress);

 private:
  friend class Accounts;
  void release();
  std::byte* data_ = nullptr;
  size_t size_ = 0, mapped_ = 0;
  Accounts* accounts_ = nullptr;
  Account account_ = Account::kRuntime;
  std::string part_;
};

// What /proc/self says, bytes. Zeros where a line is missing.
struct ProcessMemory {
  uint64_t rss = 0, rss_anon = 0, rss_file = 0, swap = 0, virtual_size = 0, anon_huge = 0;
};
ProcessMemory process_memory();

}  // namespace tally::base
