#include "base/log.h"

#include <poll.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <mutex>

namespace tally::base {
namespace {

// stderr, without waiting: what a pipe has no room for, or a closed one does not take, is counted and gone.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  std::atomic<uint64_t> dropped{0}, errors{0};

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    // A pipe that is ready takes so much at once.
    for (size_t at = 0; at < line.size();) {
      pollfd ready{STDERR_FILENO, POLLOUT, 0};
      const size_t bytes = std::min<size_t>(line.size() - at, PIPE_BUF);
      const bool has_room = ::poll(&ready, 1, 0) == 1;
      const ssize_t written = has_room ? ::write(STDERR_FILENO, line.data() + at, bytes) : 0;
      if (written <= 0) {
        errors += has_room;
        ++dropped;
        return;
      }
      at += static_cast<size_t>(written);
    }
  }
  void flush_() override {}
};

const std::shared_ptr<StderrSink>& sink() {
  static const auto instance = std::make_shared<StderrSink>();
  return instance;
}

spdlog::logger& logger() {
  static spdlog::logger instance = [] {
    spdlog::logger l("tally", sink());
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

uint64_t log_lines_dropped() { return sink()->dropped.load(); }
uint64_t log_write_errors() { return sink()->errors.load(); }

}  // namespace tally::base
