#pragma once
// How long blocks live and rest, counted where it happens: a few additions, no allocation.

#include "base/ids.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace tally::kv {

// Upper edges; a tick is a microsecond where these are read.
inline constexpr std::array<double, 11> kAgeEdgesSeconds = {.001, .01, .1, 1, 5, 10, 30, 60, 300, 900, 3600};

class AgeCounts {
 public:
  void observe(Tick age) {
    const double seconds = static_cast<double>(age) * 1e-6;
    const auto at = std::lower_bound(kAgeEdgesSeconds.begin(), kAgeEdgesSeconds.end(), seconds);
    ++counts_[static_cast<size_t>(at - kAgeEdgesSeconds.begin())];
    seconds_ += seconds;
  }
  const std::array<uint64_t, kAgeEdgesSeconds.size() + 1>& counts() const { return counts_; }
  double seconds() const { return seconds_; }

 private:
  std::array<uint64_t, kAgeEdgesSeconds.size() + 1> counts_{};
  double seconds_ = 0;  // sum
};

struct BlockAges {
  AgeCounts lifetime;           // from the first use to the eviction
  AgeCounts idle_before_evict;  // from the last use to the eviction
  AgeCounts reuse_gap;          // between two uses
};

}  // namespace tally::kv
