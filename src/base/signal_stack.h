#pragma once
// A stack for signals, so that a thread that has run out of its own can still say so.

namespace tally::base {

// Gives the calling thread one until it ends. Idempotent. Without memory for it, the thread goes on without.
void take_signal_stack();

}  // namespace tally::base
