#include "crash_line.h"

#include "base/signal_stack.h"

#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <iterator>
#include <string_view>

namespace tally::apps {
namespace {

#if defined(TALLY_INSTRUMENTED)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

struct Crash {
  int number = 0;
  std::string_view name;
};
constexpr Crash kCrashes[] = {
    {SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}, {SIGABRT, "SIGABRT"}};

// One write, of what needs no memory and no lock.
class Line {
 public:
  void add(std::string_view text) {
    for (const char c : text)
      if (length_ < sizeof bytes_) bytes_[length_++] = c;
  }
  void add(unsigned long number) {
    char digits[20];
    size_t at = std::size(digits);
    do digits[--at] = static_cast<char>('0' + number % 10);
    while ((number /= 10) > 0);
    add(std::string_view(digits + at, std::size(digits) - at));
  }
  // Not to a pipe that is full: the process has to end.
  void write() const {
    pollfd ready{STDERR_FILENO, POLLOUT, 0};
    if (::poll(&ready, 1, 0) != 1) return;
    if (::write(STDERR_FILENO, bytes_, length_) < 0) return;  // nobody is there to be told
  }

 private:
  char bytes_[200] = {};
  size_t length_ = 0;
};

// The handler was for once: the signal comes again, and ends the process as it would have.
void tell(int number) {
  Line line;
  line.add("tally: ended by ");
  for (const Crash& crash : kCrashes)
    if (crash.number == number) line.add(crash.name);
  line.add(", a fault of the program (version " TALLY_VERSION ", process ");
  line.add(static_cast<unsigned long>(::getpid()));
  line.add(")\n");
  line.write();
  ::raise(number);
}

}  // namespace

void tell_crashes() {
  if (kSanitized) return;
  base::take_signal_stack();
  struct sigaction action{};
  action.sa_handler = tell;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_NODEFER | SA_ONSTACK);
  for (const Crash& crash : kCrashes) ::sigaction(crash.number, &action, nullptr);
}

}  // namespace tally::apps
