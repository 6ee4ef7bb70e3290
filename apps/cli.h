#pragma once
// From argv to resolved settings; shared by every command.

#include "base/result.h"
#include "base/settings.h"

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::apps {

std::span<const base::SettingRow> setting_rows();

struct Command {
  std::string_view name;  // one word, or two: "bench engine", whose rows in settings.inc say bench-engine
  std::string_view arguments;  // "MODEL.gguf [PROMPT]"
  std::string_view help;
  int (*run)(const struct Invocation&);  // null: not built yet
};
std::span<const Command> commands();
// As the rows of settings.inc write it: without blanks.
std::string settings_name(const Command& command);

// One command as called.
struct Invocation {
  std::vector<std::string> arguments;  // without flags
  base::Settings settings;
};

// Parses flags of `command` from argv[2..], the environment and --config. Errors: kUsage with the nearest
// flag.
base::Result<Invocation> parse(const Command& command, std::span<const std::string> arguments);

// Where the environment says that caches go; "" if it says nothing.
std::string cache_directory();
// NO_COLOR of the environment is set.
bool colour_forbidden();
// TALLY_API_KEY of the environment, for commands that are clients; "" without.
std::string client_api_key();

// Prints a value as one line on stdout. Nothing but ASCII: what a file or a server says moves no terminal.
void write_json(const nlohmann::json& value);

// Prints one line "tally: …" to stderr, returns the exit code.
int fail(const base::Error& error);

int run_serve(const Invocation& call);
int run_run(const Invocation& call);
int run_inspect(const Invocation& call);
int run_tokenize(const Invocation& call);
int run_quantize(const Invocation& call);
int run_plan(const Invocation& call);
int run_snapshot(const Invocation& call);
int run_bench_engine(const Invocation& call);
int run_bench_kernel(const Invocation& call);
int run_bench_attention(const Invocation& call);
int run_bench_load(const Invocation& call);
int run_simulate(const Invocation& call);
int run_compare(const Invocation& call);
int run_ablate(const Invocation& call);
int run_eval_ppl(const Invocation& call);
int run_eval_kld(const Invocation& call);
int run_eval_kv(const Invocation& call);
int run_runs(const Invocation& call);
int run_report(const Invocation& call);
int run_trace(const Invocation& call);
int run_explain(const Invocation& call);
int run_doctor(const Invocation& call);
int run_top(const Invocation& call);
int run_help(const Invocation& call);
// The page of one command, or of a family of them ("bench").
int show_help(std::string_view command);

}  // namespace tally::apps
