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
  const std::string wanted = call.arguments.empty() ? "" : call.arguments[0];
  if (wanted.empty()) {
    fmt::print(
        "tally {}: LLM inference on CPUs that keeps its accounts\n\nusage: tally COMMAND [MODEL.gguf] "
        "[flags]\n\n",
        TALLY_VERSION);
    for (const Command& command : commands()) {
      fmt::print("  {:<9} {:<28} {}{}\n", command.name, command.arguments, command.help,
                 command.run == nullptr ? " (not supported yet)" : "");
    }
    fmt::print(
        "\nFlags of a command: tally help COMMAND. Every flag is also a variable (TALLY_NAME) and a key of "
        "--config.\n");
    return 0;
  }
  for (const Command& command : commands()) {
    if (command.name != wanted) continue;
    fmt::print("tally {} {}\n  {}{}\n\n", command.name, command.arguments, command.help,
               command.run == nullptr ? " (not supported yet)" : "");
    fmt::print("{}", base::settings_help(setting_rows(), command.name));
    return 0;
  }
  return fail(
      {base::ErrorCode::kUsage, fmt::format("help {}: no such command", base::escape_for_log(wanted, 64))});
}

}  // namespace tally::apps
