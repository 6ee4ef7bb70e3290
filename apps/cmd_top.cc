// tally top URL: what a server does now.
#include "cli.h"
#include "interrupt.h"
#include "measure/top.h"
#include "terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <thread>

namespace tally::apps {
namespace {

using measure::TopWatch;
using std::chrono::milliseconds;

constexpr milliseconds kLineEach{5000};  // where stdout is no terminal

void print_line(const measure::TopState& state, bool as_json) {
  as_json ? write_json(measure::top_json(state)) : fmt::print("{}\n", measure::top_line(state));
  std::fflush(stdout);
}

// A line each 5 s, until the server or the user ends it.
int print_lines(TopWatch& watch, bool as_json) {
  for (;;) {
    for (milliseconds waited{}; waited < kLineEach; waited += milliseconds(100)) {
      if (interrupted()) return kInterrupted;
      std::this_thread::sleep_for(milliseconds(100));
    }
    if (const auto looked = watch.look(); !looked) return fail(looked.error());
    print_line(watch.state(), as_json);
  }
}

// Redraws after each look and when a key is hit; a server that is away may come back.
int show(TopWatch& watch, milliseconds interval) {
  Screen screen;
  for (;;) {
    const TerminalSize size = terminal_size();
    screen.draw(measure::draw_top(
        watch.state(), {.columns = size.columns, .rows = size.rows, .has_colour = !colour_forbidden()}));
    const char key = screen.key_within(interval);
    if (interrupted()) return kInterrupted;
    if (key == 'q') return 0;
    static_cast<void>(watch.look());
  }
}

}  // namespace

int run_top(const Invocation& call) {
  if (call.arguments.size() != 1)
    return fail({base::ErrorCode::kUsage, fmt::format("top: {} arguments; one is needed: the URL of a server",
                                                      call.arguments.size())});
  hold_ending_signals();
  auto watch = TopWatch::open(call.arguments[0], client_api_key());
  if (!watch) return fail(watch.error());
  if (const auto looked = watch->look(); !looked) return fail(looked.error());
  const bool as_json = call.settings.on("json"), once = call.settings.on("once");
  const bool has_terminal = ::isatty(STDOUT_FILENO) == 1 && ::isatty(STDIN_FILENO) == 1;
  if (has_terminal && !as_json && !once) return show(*watch, milliseconds(call.settings.number("interval")));
  print_line(watch->state(), as_json);
  return once ? 0 : print_lines(*watch, as_json);
}

}  // namespace tally::apps
