#pragma once
// What a decode step of so many rows takes here: measured at start with the model's own passes, then followed
// as steps go by, for depth, sampling and other work on the machine change it. Microseconds.

#include <array>
#include <cstdint>
#include <span>

namespace tally::engine {

class RowPrices {
 public:
  static constexpr uint32_t kRowsMax = 32;
  // What is measured at start; between them prices lie on lines.
  static constexpr std::array<uint32_t, 10> kMeasuredRows = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};

  // Of the first of kMeasuredRows, at least one; never falling as rows grow, what was not measured goes on as
  // the last ones went.
  // `fixed`: what steps take does not matter (tests).
  explicit RowPrices(std::span<const double> measured_us, bool fixed = false);

  // Requires: 1..kRowsMax rows.
  double us(uint32_t rows) const { return at_start_[rows] * factor_[rows]; }
  // Of a step with decode rows and drafts only.
  void observe(uint32_t rows, double taken_us);

 private:
  std::array<double, kRowsMax + 1> at_start_{}, factor_{};
  bool fixed_;
};

}  // namespace tally::engine
