#pragma once
// What compiler, constraint and matcher know of each other. Private to the room.

#include "sample/constraint.h"
#include "sample/constraint_meter.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace tally::sample {

// The bytes of a compiler: of constraints, and of the matchers that follow them. Any thread.
class HeldBytes {
 public:
  enum class Of : uint8_t { kConstraints, kMatchers };

  explicit HeldBytes(std::function<void(int64_t)> booked) : booked_(std::move(booked)) {}
  void add(Of of, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    totals_[static_cast<size_t>(of)] += bytes;
    if (booked_) booked_(bytes);
  }
  // Who is told of changes may be gone from here on; constraints in use may not.
  void close() {
    const std::lock_guard lock(mutex_);
    if (booked_) booked_(-(totals_[0] + totals_[1]));
    booked_ = nullptr;
  }
  size_t total(Of of) const {
    const std::lock_guard lock(mutex_);
    return static_cast<size_t>(std::max<int64_t>(0, totals_[static_cast<size_t>(of)]));
  }

 private:
  mutable std::mutex mutex_;
  std::function<void(int64_t)> booked_;  // guarded by mutex_
  std::array<int64_t, 2> totals_{};      // guarded by mutex_; by Of
};

// The blanks of JSON in a vocabulary. A grammar that counted them would be ten times as large.
struct Blanks {
  std::vector<uint32_t> only;     // mask of the ids that are nothing else
  std::vector<uint8_t> trailing;  // [vocab] how many an id ends with, saturated
};

struct Constraint::State {
  xgrammar::CompiledGrammar grammar;
  ConstraintLimits limits;
  size_t vocab = 0, bytes = 0;
  std::shared_ptr<const Blanks> blanks;  // of JSON; null: blanks are as good as any other text
  std::shared_ptr<HeldBytes> held;
};

inline size_t mask_words(size_t vocab) { return (vocab + 31) / 32; }

// Fills the mask of what `matcher` allows next.
inline void fill_mask(xgrammar::GrammarMatcher& matcher, std::span<uint32_t> mask) {
  auto words = static_cast<int64_t>(mask.size());
  DLTensor tensor{};
  tensor.data = mask.data();
  tensor.device = {kDLCPU, 0};
  tensor.ndim = 1;
  tensor.dtype = {kDLInt, 32, 1};
  tensor.shape = &words;
  matcher.FillNextTokenBitmask(&tensor);
}

}  // namespace tally::sample
