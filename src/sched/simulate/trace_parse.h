#pragma once
// What the readers of trace formats share. Private to the folder.

#include "sched/simulate/trace.h"

#include <string>
#include <string_view>

namespace tally::sched::simulate {

// Where a value stands: its line, from 1, and its column or key.
struct Place {
  size_t line = 0;
  std::string_view column;
};

// "line 3, column output: '-1' is not allowed; allowed: a whole number 1..16777216".
base::Error bad_value(const Place& place, std::string_view value, const std::string& allowed);
base::Error bad_line(size_t line, const std::string& what);

// A whole number in [min, max].
base::Result<uint32_t> parse_number(const Place& place, std::string_view text, uint32_t min, uint32_t max);
// Microseconds of "12.5" (seconds) or of a date and time, with as many decimals as it likes.
base::Result<Tick> parse_instant(const Place& place, std::string_view text);

std::string_view trim(std::string_view text);
// Takes the next line off `text`, without its end.
std::string_view take_line(std::string_view& text);

// The traces whose lines are JSON objects: {"timestamp": ms, "input_length", "output_length", "hash_ids"}.
base::Result<Trace> parse_json_lines(std::string_view text);

}  // namespace tally::sched::simulate
