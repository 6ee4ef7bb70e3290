#pragma once
// The terminal that stdout is.

#include <termios.h>

#include <chrono>
#include <cstddef>
#include <string_view>

namespace tally::apps {

struct TerminalSize {
  size_t columns = 80, rows = 24;
};
// 80 x 24 where stdout is no terminal.
TerminalSize terminal_size();

// The alternate screen, with keys as they are hit; what was there before comes back on destruction.
// Requires: stdin and stdout are a terminal; hold_ending_signals() was called, so that nothing ends the
// process meanwhile.
class Screen {
 public:
  Screen();
  ~Screen();
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  // Lines, in place of what is shown.
  void draw(std::string_view lines);
  // The next key; 0: none came, or a signal did.
  char key_within(std::chrono::milliseconds wait);

 private:
  termios before_{};
};

}  // namespace tally::apps
