#pragma once
// One log, to stderr. The sink is the only mutable global of the house.  Prompts and outputs are never
// logged.

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace tally::base {

enum class LogLevel : int { kTrace, kDebug, kInfo, kWarn, kError, kOff };

// Called once by the composition root, before threads. json: one object a line.
void log_configure(LogLevel level, bool json);
bool log_enabled(LogLevel level);
void log_write(LogLevel level, std::string_view message);
// Lines that nobody took, because stderr is closed or its pipe full; and writes to it that failed. Who logs
// never waits for who reads.
uint64_t log_lines_dropped();
uint64_t log_write_errors();

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_write(level, fmt::format(format, std::forward<Args>(args)...));
}
template <class... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kInfo, format, std::forward<Args>(args)...);
}
template <class... Args>
void log_warn(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kWarn, format, std::forward<Args>(args)...);
}
template <class... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log(LogLevel::kError, format, std::forward<Args>(args)...);
}

}  // namespace tally::base
