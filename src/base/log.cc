#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace tally::base {
namespace {

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger l("tally", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    l.set_pattern("%Y-%m-%dT%H:%M:%S.%e %L %v");
    return l;
  }();
  return instance;
}

spdlog::level::level_enum level_of(LogLevel level) {
  return level == LogLevel::kOff ? spdlog::level::off : static_cast<spdlog::level::level_enum>(level);
}

}  // namespace

void log_configure(LogLevel level, bool json) {
  logger().set_level(level_of(level));
  // Messages are escaped by those who put foreign text in them; quotes and backslashes are the only JSON
  // hazard left, and log_write replaces them.
  if (json) logger().set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%e","level":"%l","message":"%v"})");
}

bool log_enabled(LogLevel level) { return logger().should_log(level_of(level)); }

void log_write(LogLevel level, std::string_view message) {
  std::string line(message);
  for (char& c : line) {
    if (c == '"') c = '\'';
    if (c == '\\' || c == '\n' || c == '\r') c = ' ';
  }
  logger().log(level_of(level), "{}", line);
}

}  // namespace tally::base
