// Numbers with units.
#include "base/settings.h"

#include <charconv>
#include <cmath>
#include <utility>

namespace tally::base {
namespace {

// The number at the start of `text`, without sign, and what follows it.
std::optional<std::pair<double, std::string_view>> leading_number(std::string_view text) {
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  double value = 0;
  const auto [end, ec] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (ec != std::errc() || !std::isfinite(value)) return std::nullopt;
  return std::pair{value, text.substr(static_cast<size_t>(end - text.data()))};
}

struct Unit {
  std::string_view suffix;
  double factor;
};

template <size_t N>
std::optional<double> with_unit(std::string_view text, const Unit (&units)[N]) {
  const auto number = leading_number(text);
  if (!number) return std::nullopt;
  for (const Unit& unit : units) {
    if (number->second == unit.suffix) return number->first * unit.factor;
  }
  return std::nullopt;
}

}  // namespace

std::optional<double> parse_bytes(std::string_view text) {
  static constexpr Unit kUnits[] = {{"", 1},         {"B", 1},        {"KiB", 0x1p10}, {"MiB", 0x1p20},
                                    {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"KB", 1e3},     {"MB", 1e6},
                                    {"GB", 1e9},     {"TB", 1e12}};
  return with_unit(text, kUnits);
}

std::optional<double> parse_duration_ms(std::string_view text) {
  static constexpr Unit kUnits[] = {{"", 1000}, {"ms", 1}, {"s", 1000}, {"min", 60000}};
  return with_unit(text, kUnits);
}

std::optional<uint64_t> parse_uint(std::string_view text) {
  uint64_t value = 0;
  const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::optional<double> parse_real(std::string_view text) {
  const bool negative = text.starts_with('-');
  const auto number = leading_number(negative ? text.substr(1) : text);
  if (!number || !number->second.empty()) return std::nullopt;
  return negative ? -number->first : number->first;
}

}  // namespace tally::base
