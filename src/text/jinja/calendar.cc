#include "text/jinja/calendar.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace tally::text::jinja {
namespace {

constexpr std::array<std::string_view, 12> kMonths = {"January",   "February", "March",    "April",
                                                      "May",       "June",     "July",     "August",
                                                      "September", "October",  "November", "December"};
constexpr std::array<std::string_view, 7> kDays = {"Sunday",   "Monday", "Tuesday", "Wednesday",
                                                   "Thursday", "Friday", "Saturday"};

struct Time {
  int64_t year = 1970;
  unsigned month = 1, day = 1;  // from 1
  unsigned week_day = 4;        // 0 is Sunday
  unsigned year_day = 1;        // from 1
  unsigned hour = 0, minute = 0, second = 0;
};

bool is_leap(int64_t year) { return (year % 4 == 0 && year % 100 != 0) || year % 400 == 0; }

// Proleptic Gregorian date of a day number, in eras of 400 years that begin on 1 March.
Time time_of(int64_t unix_s) {
  constexpr int64_t kDayS = 86'400;
  constexpr int64_t kFarS = 253'402'300'799;  // the end of the year 9999
  unix_s = std::clamp(unix_s, -kFarS, kFarS);
  const int64_t days = unix_s >= 0 ? unix_s / kDayS : -((kDayS - 1 - unix_s) / kDayS);
  const auto rest = static_cast<unsigned>(unix_s - days * kDayS);
  const int64_t shifted = days + 719'468;
  const int64_t era = (shifted >= 0 ? shifted : shifted - 146'096) / 146'097;
  const auto of_era = static_cast<unsigned>(shifted - era * 146'097);
  const unsigned year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
  const unsigned of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
  const unsigned march_month = (5 * of_year + 2) / 153;
  Time t;
  t.day = of_year - (153 * march_month + 2) / 5 + 1;
  t.month = march_month < 10 ? march_month + 3 : march_month - 9;
  t.year = static_cast<int64_t>(year_of_era) + era * 400 + (t.month <= 2 ? 1 : 0);
  t.week_day = static_cast<unsigned>(((days + 4) % 7 + 7) % 7);
  constexpr std::array<unsigned, 12> kBefore = {0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334};
  t.year_day = kBefore[t.month - 1] + t.day + (t.month > 2 && is_leap(t.year) ? 1 : 0);
  t.hour = rest / 3600;
  t.minute = rest / 60 % 60;
  t.second = rest % 60;
  return t;
}

std::string padded(int64_t value, int width, char pad) {
  std::string digits = std::to_string(value);
  if (pad != '\0' && digits.size() < static_cast<size_t>(width))
    digits.insert(0, static_cast<size_t>(width) - digits.size(), pad);
  return digits;
}

// Text of one directive, empty if it is not known. `pad`: '0', ' ' or none.
std::string directive(char kind, const Time& t, char pad) {
  const unsigned hour12 = t.hour % 12 == 0 ? 12 : t.hour % 12;
  switch (kind) {
    case 'Y':
      return padded(t.year, 4, pad);
    case 'y':
      return padded(((t.year % 100) + 100) % 100, 2, pad);
    case 'm':
      return padded(t.month, 2, pad);
    case 'd':
      return padded(t.day, 2, pad);
    case 'e':
      return padded(t.day, 2, pad == '0' ? ' ' : pad);
    case 'H':
      return padded(t.hour, 2, pad);
    case 'I':
      return padded(hour12, 2, pad);
    case 'M':
      return padded(t.minute, 2, pad);
    case 'S':
      return padded(t.second, 2, pad);
    case 'j':
      return padded(t.year_day, 3, pad);
    case 'f':
      return "000000";
    case 'B':
      return std::string(kMonths[t.month - 1]);
    case 'b':
    case 'h':
      return std::string(kMonths[t.month - 1].substr(0, 3));
    case 'A':
      return std::string(kDays[t.week_day]);
    case 'a':
      return std::string(kDays[t.week_day].substr(0, 3));
    case 'p':
      return t.hour < 12 ? "AM" : "PM";
    case 'w':
      return std::to_string(t.week_day);
    case 'u':
      return std::to_string(t.week_day == 0 ? 7 : t.week_day);
    case 'Z':
      return "UTC";
    case 'z':
      return "+0000";
    case 'n':
      return "\n";
    case 't':
      return "\t";
    case '%':
      return "%";
    case 'F':
      return fmt::format("{:04}-{:02}-{:02}", t.year, t.month, t.day);
    case 'T':
    case 'X':
      return fmt::format("{:02}:{:02}:{:02}", t.hour, t.minute, t.second);
    case 'R':
      return fmt::format("{:02}:{:02}", t.hour, t.minute);
    case 'D':
    case 'x':
      return fmt::format("{:02}/{:02}/{:02}", t.month, t.day, ((t.year % 100) + 100) % 100);
    case 'c':
      return fmt::format("{} {} {:2} {:02}:{:02}:{:02} {:04}", kDays[t.week_day].substr(0, 3),
                         kMonths[t.month - 1].substr(0, 3), t.day, t.hour, t.minute, t.second, t.year);
    default:
      return "";
  }
}

}  // namespace

std::string format_time(std::string_view format, int64_t unix_s) {
  const Time t = time_of(unix_s);
  std::string out;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out.push_back(format[i]);
      continue;
    }
    const bool dash = i + 1 < format.size() && format[i + 1] == '-';
    const size_t at = i + (dash ? 2 : 1);
    const std::string text = at < format.size() ? directive(format[at], t, dash ? '\0' : '0') : "";
    if (text.empty()) {
      out.push_back('%');
    } else {
      out += text;
      i = at;
    }
  }
  return out;
}

}  // namespace tally::text::jinja
