#include "measure/shown.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

namespace tally::measure {

std::string three_digits(double value) {
  const double size = std::abs(value);
  // By what is printed: 99.97 is 100, not 100.0.
  const int decimals = size >= 99.95 || size == 0 ? 0 : size >= 9.995 ? 1 : size >= .9995 ? 2 : 3;
  return fmt::format("{:.{}f}", value, decimals);
}

bool equal_words(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return std::tolower(static_cast<unsigned char>(c)); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace tally::measure
