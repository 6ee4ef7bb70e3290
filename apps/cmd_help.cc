#include "base/utf8.h"
#include "cli.h"

#include <fmt/format.h>

#include <cstdio>

namespace tally::apps {

int run_help(const Invocation& call) {
  if (call.settings.values().contains("markdown") && call.settings.on("markdown")) {
    fmt::print("{}", base::settings_page(setting_rows()));
    return 0;
  }
  std::string wanted;
  for (const std::string& word : call.arguments) wanted += (wanted.empty() ? "" : " ") + word;
  if (wanted.empty()) {
    fmt::print(
        "tally {}: LLM inference on CPUs that keeps its accounts\n\nusage: tally COMMAND [MODEL.gguf] "
        "[flags]\n\n",
        TALLY_VERSION);
    for (const Command& command : commands()) {
      fmt::print("  {:<15} {:<25} {}{}\n", command.name, command.arguments, command.help,
                 command.run == nullptr ? " (not supported yet)" : "");
    }
    fmt::print(
        "\nFlags of a command: tally help COMMAND. Every flag is also a variable (TALLY_NAME) and a key of "
        "--config.\n");
    return 0;
  }
  return show_help(wanted);
}

int show_help(std::string_view wanted) {
  size_t shown = 0;
  for (const Command& command : commands()) {
    if (command.name != wanted && !command.name.starts_with(fmt::format("{} ", wanted))) continue;
    fmt::print("{}tally {} {}\n  {}{}\n\n", shown++ == 0 ? "" : "\n", command.name, command.arguments,
               command.help, command.run == nullptr ? " (not supported yet)" : "");
    fmt::print("{}", base::settings_help(setting_rows(), settings_name(command)));
  }
  if (shown > 0) return 0;
  return fail(
      {base::ErrorCode::kUsage, fmt::format("help {}: no such command", base::escape_for_log(wanted, 64))});
}

}  // namespace tally::apps
