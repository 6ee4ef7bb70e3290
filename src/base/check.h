#pragma once
// We are wrong: a broken invariant prints where, what and the given ids and counters, and ends the process.
// Never reachable from input.
//
//   TALLY_CHECK(owners > 0, "drop of a free block", fmt-style id, count)
//   TALLY_DCHECK(...)   the same, in builds without NDEBUG or with TALLY_DCHECKS (hot loops)

#include <string>
#include <string_view>

namespace tally::base {

// Prints one line (no content of requests) to stderr and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& what);

namespace detail {
inline std::string check_text(std::string_view what) { return std::string(what); }
template <class... Args>
std::string check_text(std::string_view what, const Args&... values) {
  std::string s(what);
  ((s += ' ', s += std::to_string(values)), ...);
  return s;
}
}  // namespace detail
}  // namespace tally::base

// After the sentence, any number of integers or floats, printed in order.
#define TALLY_CHECK(cond, ...)                                                     \
  do {                                                                             \
    if (!(cond)) [[unlikely]]                                                      \
      ::tally::base::check_failed(__FILE__, __LINE__, #cond,                       \
                                  ::tally::base::detail::check_text(__VA_ARGS__)); \
  } while (false)

#if !defined(NDEBUG) || defined(TALLY_DCHECKS)
#define TALLY_DCHECK(cond, ...) TALLY_CHECK(cond, __VA_ARGS__)
#else
#define TALLY_DCHECK(cond, ...) \
  do {                          \
  } while (false)
#endif

#define TALLY_UNREACHABLE(what) ::tally::base::check_failed(__FILE__, __LINE__, "unreachable", what)
