#include "interrupt.h"

#include <csignal>

namespace tally::apps {
namespace {

constexpr int kEnding[] = {SIGINT, SIGTERM, SIGHUP};

}  // namespace

void hold_ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kEnding) sigaddset(&set, signal);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

bool interrupted() {
  sigset_t pending;
  sigpending(&pending);
  for (const int signal : kEnding)
    if (sigismember(&pending, signal) == 1) return true;
  return false;
}

}  // namespace tally::apps
