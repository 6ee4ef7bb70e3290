#include "measure/shown.h"

#include <fmt/format.h>

#include <cmath>

namespace tally::measure {

std::string three_digits(double value) {
  const double size = std::abs(value);
  // By what is printed: 99.97 is 100, not 100.0.
  const int decimals = size >= 99.95 || size == 0 ? 0 : size >= 9.995 ? 1 : size >= .9995 ? 2 : 3;
  return fmt::format("{:.{}f}", value, decimals);
}

}  // namespace tally::measure
