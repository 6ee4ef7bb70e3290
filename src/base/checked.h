#pragma once
// Checked 64-bit arithmetic for sizes that come from an untrusted file: one overflow anywhere makes the
// result empty, and an empty value stays empty. Local overflow checks were bypassed four times in peers; this
// type is the only place.

#include <cstdint>
#include <optional>

namespace tally::base {

class Checked {
 public:
  constexpr Checked(uint64_t v) : value_(v) {}
  constexpr std::optional<uint64_t> get() const { return value_; }

  friend constexpr Checked operator+(Checked a, Checked b) {
    uint64_t r = 0;
    if (!a.value_ || !b.value_ || __builtin_add_overflow(*a.value_, *b.value_, &r)) return none();
    return r;
  }
  friend constexpr Checked operator*(Checked a, Checked b) {
    uint64_t r = 0;
    if (!a.value_ || !b.value_ || __builtin_mul_overflow(*a.value_, *b.value_, &r)) return none();
    return r;
  }
  // Rounds up to a multiple of `unit`, a power of two.
  constexpr Checked align_up(uint64_t unit) const {
    const Checked sum = *this + Checked(unit - 1);
    if (!sum.value_) return none();
    return *sum.value_ & ~(unit - 1);
  }

 private:
  constexpr Checked() = default;
  static constexpr Checked none() { return Checked(); }
  std::optional<uint64_t> value_;
};

}  // namespace tally::base
