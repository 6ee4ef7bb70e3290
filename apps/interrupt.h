#pragma once
// Ctrl-C for commands that work alone: the ending signals are blocked and looked for now and then, so that
// what was begun is put away.

namespace tally::apps {

inline constexpr int kInterrupted = 130;  // the exit code

// Blocks SIGINT, SIGTERM and SIGHUP in the calling thread and those it starts later.
void hold_ending_signals();
// True once one of them came, and was not taken.
bool interrupted();
// Takes those that came: for who counts them. Several at once (a service manager's SIGTERM and SIGHUP) are
// one.
bool take_interrupt();

}  // namespace tally::apps
