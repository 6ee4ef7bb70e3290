#pragma once
// What came in the last minute, for those who want rates instead of counters.

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace tally::serve {

// Tokens of the last minute, a look each second. Threads: any.
class RateWindow {
 public:
  static constexpr int64_t kSpanUs = 60'000'000, kEveryUs = 1'000'000;
  struct Rates {
    double prompt = 0, generated = 0;  // tokens a second
  };

  // Whether a look is due.
  bool due(int64_t now_us) const;
  // Counters since the start: prompt tokens computed, and tokens generated.
  void look(int64_t now_us, uint64_t prompt, uint64_t generated);
  // From the oldest look that is no older than the span, to these counters.
  Rates rates(int64_t now_us, uint64_t prompt, uint64_t generated) const;

 private:
  struct Look {
    int64_t at_us = 0;
    uint64_t prompt = 0, generated = 0;
  };
  mutable std::mutex mutex_;
  std::array<Look, kSpanUs / kEveryUs> looks_;  // guarded by mutex_, a ring
  size_t count_ = 0;                            // guarded by mutex_: looks ever made
};

}  // namespace tally::serve
