// How figures are written for people.
#pragma once

#include <string>
#include <string_view>

namespace tally::measure {

// Three significant digits, no exponent: 0.012, 1.23, 12.3, 123, 1234.
std::string three_digits(double value);

// Names of types, which are written in both cases.
bool equal_words(std::string_view a, std::string_view b);

}  // namespace tally::measure
