#pragma once
// From argv to resolved settings; shared by every command.

#include "base/result.h"
#include "base/settings.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::apps {

std::span<const base::SettingRow> setting_rows();

struct Command {
  std::string_view name;
  std::string_view arguments;  // "MODEL.gguf [PROMPT]"
  std::string_view help;
  int (*run)(const struct Invocation&);  // null: not built yet
};
std::span<const Command> commands();

// One command as called.
struct Invocation {
  std::vector<std::string> arguments;  // without flags
  base::Settings settings;
};

// Parses flags of `command` from argv[2..], the environment and --config. Errors: kUsage with the nearest
// flag.
base::Result<Invocation> parse(const Command& command, std::span<const std::string> arguments);

// Prints one line "tally: …" to stderr, returns the exit code.
int fail(const base::Error& error);

int run_serve(const Invocation& call);
int run_run(const Invocation& call);
int run_inspect(const Invocation& call);
int run_tokenize(const Invocation& call);
int run_quantize(const Invocation& call);
int run_help(const Invocation& call);

}  // namespace tally::apps
