#pragma once
// A crash says what it was in one line, and ends the process by its signal.

namespace tally::apps {

// For SIGSEGV, SIGBUS, SIGFPE, SIGILL and SIGABRT: a line on stderr with signal, version and process, nothing
// of any request. A thread that has run out of stack needs base::take_signal_stack(), which the caller has
// after this. A sanitizer's own report is better, so its builds are left alone.
void tell_crashes();

}  // namespace tally::apps
