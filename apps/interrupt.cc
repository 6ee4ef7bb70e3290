#include "interrupt.h"

#include <csignal>
#include <ctime>

namespace tally::apps {
namespace {

constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP};

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kEnding) sigaddset(&set, signal);
  return set;
}

}  // namespace

void hold_ending_signals() {
  const sigset_t set = ending_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

bool take_interrupt() {
  const sigset_t set = ending_signals();
  constexpr timespec kNow{};
  bool came = false;
  while (::sigtimedwait(&set, nullptr, &kNow) > 0) came = true;
  return came;
}

bool interrupted() {
  sigset_t pending;
  sigpending(&pending);
  for (const int signal : kEnding)
    if (sigismember(&pending, signal) == 1) return true;
  return false;
}

}  // namespace tally::apps
