// How figures are written for people.
#pragma once

#include <string>

namespace tally::measure {

// Three significant digits, no exponent: 0.012, 1.23, 12.3, 123, 1234.
std::string three_digits(double value);

}  // namespace tally::measure
