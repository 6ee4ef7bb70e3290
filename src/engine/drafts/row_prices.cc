#include "engine/drafts/row_prices.h"

#include "base/check.h"

#include <algorithm>

namespace tally::engine {

RowPrices::RowPrices(std::span<const double> measured_us, bool fixed) : fixed_(fixed) {
  TALLY_CHECK(!measured_us.empty() && measured_us.size() <= kMeasuredRows.size() && measured_us[0] > 0,
              "prices of rows", measured_us.size());
  factor_.fill(1);
  at_start_[1] = measured_us[0];
  double slope = 0;
  for (uint32_t i = 0, rows = 1; rows < kRowsMax; ++rows) {
    if (i + 1 < measured_us.size() && rows == kMeasuredRows[i]) {
      const double left = std::max(0.0, measured_us[i + 1] - at_start_[rows]);
      slope = left / (kMeasuredRows[i + 1] - kMeasuredRows[i]);
      ++i;
    }
    at_start_[rows + 1] = at_start_[rows] + slope;
  }
}

void RowPrices::observe(uint32_t rows, double taken_us) {
  // One step out of the ordinary must not decide, and what was seen of other counts long ago may be past.
  constexpr double kNear = 1.0 / 8, kFar = 1.0 / 64, kOddest = 2;
  if (fixed_) return;
  double& here = factor_[rows];
  const double ratio = taken_us / at_start_[rows];
  here += kNear * (std::clamp(ratio, here / kOddest, here * kOddest) - here);
  for (uint32_t r = 1; r <= kRowsMax; ++r) factor_[r] += kFar * (here - factor_[r]);
}

}  // namespace tally::engine
