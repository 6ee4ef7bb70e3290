#include "terminal.h"

#include "interrupt.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace tally::apps {

TerminalSize terminal_size() {
  winsize size{};
  TerminalSize out;
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return out;
  if (size.ws_col > 0) out.columns = size.ws_col;
  if (size.ws_row > 0) out.rows = size.ws_row;
  return out;
}

Screen::Screen() {
  ::tcgetattr(STDIN_FILENO, &before_);
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // Ctrl-C stays a signal
  ::tcsetattr(STDIN_FILENO, TCSANOW, &raw);
  fmt::print("\x1b[?1049h\x1b[?25l");  // alternate screen, no cursor
}

Screen::~Screen() {
  fmt::print("\x1b[?25h\x1b[?1049l");
  std::fflush(stdout);
  ::tcsetattr(STDIN_FILENO, TCSANOW, &before_);
}

// Over what is there, line by line, so that nothing flickers.
void Screen::draw(std::string_view lines) {
  std::string out = "\x1b[H";
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    out.append(lines.substr(0, end)).append("\x1b[K");
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (!lines.empty()) out += "\r\n";
  }
  fmt::print("{}\x1b[J", out);
  std::fflush(stdout);
}

char Screen::key_within(std::chrono::milliseconds wait) {
  constexpr std::chrono::milliseconds kSlice{100};  // a held signal wakes nobody
  for (; wait.count() > 0 && !interrupted(); wait -= kSlice) {
    pollfd in{STDIN_FILENO, POLLIN, 0};
    if (::poll(&in, 1, static_cast<int>(std::min(wait, kSlice).count())) <= 0) continue;
    char key = 0;
    return ::read(STDIN_FILENO, &key, 1) == 1 ? key : 'q';  // the terminal is gone
  }
  return 0;
}

}  // namespace tally::apps
