#pragma once
// Dates for strftime_now, in UTC and English whatever the machine's locale.

#include <cstdint>
#include <string>
#include <string_view>

namespace tally::text::jinja {

// As strftime; a directive it does not know stays as it is. `%-d` drops the padding.
std::string format_time(std::string_view format, int64_t unix_s);

}  // namespace tally::text::jinja
