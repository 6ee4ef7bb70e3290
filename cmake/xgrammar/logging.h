// Stands in for XGrammar's support/logging.h, read before any of its files (-include), with the same macros:
// - a failed check throws, without a time or a file in its message, and never while another exception is on
// its way;
// - a warning is handed to tally, which refuses what was asked for: most of them say that something is
// ignored.
//
// And it has streams into strings compiled here instead of taken from the standard library, whose memory is
// not counted; those alone, for the facets that a stream asks for are known by their address there.
#ifndef XGRAMMAR_SUPPORT_LOGGING_H_
#define XGRAMMAR_SUPPORT_LOGGING_H_

#include <ctime>
#include <exception>
#include <iostream>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0
#include <sstream>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 1
#include <iomanip>
#include <stdexcept>
#include <string>

extern "C" void tally_xgrammar_warn(const char* message);

namespace xgrammar {

class LogFatalError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class LogFatal {
 public:
  ~LogFatal() noexcept(false) {
    if (std::uncaught_exceptions() == before_) throw LogFatalError(stream_.str());
  }
  std::ostringstream& stream() { return stream_; }

 private:
  const int before_ = std::uncaught_exceptions();
  std::ostringstream stream_;
};

class LogWarning {
 public:
  ~LogWarning() noexcept(false) {
    if (std::uncaught_exceptions() == before_) tally_xgrammar_warn(stream_.str().c_str());
  }
  std::ostringstream& stream() { return stream_; }

 private:
  const int before_ = std::uncaught_exceptions();
  std::ostringstream stream_;
};

}  // namespace xgrammar

#define XGRAMMAR_LOG_INFO \
  while (false) ::xgrammar::LogFatal().stream()
#define XGRAMMAR_LOG_DEBUG XGRAMMAR_LOG_INFO
#define XGRAMMAR_LOG_WARNING ::xgrammar::LogWarning().stream()
#define XGRAMMAR_LOG_FATAL ::xgrammar::LogFatal().stream()
#define XGRAMMAR_LOG(level) XGRAMMAR_LOG_##level

#define XGRAMMAR_CHECK(x) \
  if (!(x)) ::xgrammar::LogFatal().stream()
#define XGRAMMAR_ICHECK(x) XGRAMMAR_CHECK(x)
#define XGRAMMAR_DCHECK(x) \
  while (false) XGRAMMAR_CHECK(x)

#endif
