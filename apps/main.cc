// The composition root: the table of commands.
#include "base/utf8.h"
#include "cli.h"
#include "crash_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>

namespace tally::apps {
namespace {

constexpr Command kCommands[] = {
    {"serve", "MODEL.gguf", "OpenAI-compatible server with continuous batching", run_serve},
    {"run", "MODEL.gguf [PROMPT]", "answer one prompt, or chat in the terminal", run_run},
    {"inspect", "MODEL.gguf", "header, metadata, tensors, spec, and the kernels this machine would use",
     run_inspect},
    {"tokenize", "MODEL.gguf [TEXT|ID...]", "text to ids and back", run_tokenize},
    {"quantize", "IN.gguf OUT.gguf TYPE", "another weight type: Q8_0, Q6_K, Q4_K_M, Q4_0, F16 and more",
     run_quantize},
    {"plan", "[MODEL.gguf]", "the four memory accounts before anything is loaded, and what would fit", run_plan},
    {"snapshot", "URL | diff A B", "memory accounts and block map of a server, or what changed between two", run_snapshot},
    {"bench engine", "MODEL.gguf", "the engine without HTTP: prefill, and decode x batch x depth", run_bench_engine},
    {"bench kernel", "", "the kernels of every weight type against the roofs of this machine", run_bench_kernel},
    {"bench attention", "", "attention over the KV cache: codec x context, decode and prefill", run_bench_attention},
    {"bench load", "[NAME=]URL...", "load generator against any OpenAI-compatible server", run_bench_load},
    {"simulate", "TRACE", "scheduler and allocators on a virtual clock, no model", run_simulate},
    {"compare", "A B [A2 B2]...", "stored runs in pairs: ratios with confidence and a verdict", run_compare},
    {"ablate", "FILE.json [MODEL.gguf]", "one variable at a time from a baseline, with verdicts", run_ablate},
    {"eval ppl", "MODEL.gguf", "perplexity of a text, scored through the stored KV cache", run_eval_ppl},
    {"eval kld", "MODEL.gguf", "what KV codecs change against f32 KV on a text", run_eval_kld},
    {"eval kv", "MODEL.gguf", "the same, with generated text, questions, and decode speed at depth", run_eval_kv},
    {"explain", "RUN|URL", "where the time went, what bounds it, what would help", run_explain},
    {"doctor", "[MODEL.gguf]", "is this machine set up well: finding, evidence, effect, remedy", run_doctor},
    {"top", "URL", "terminal dashboard: what a server does now", run_top},
    {"runs", "[DIR]", "stored runs", run_runs},
    {"report", "RUN...", "stored runs as one HTML page: latency, load, memory, steps, roofs", run_report},
    {"trace", "RUN", "a stored run for chrome://tracing and Perfetto", run_trace},
    {"help", "[COMMAND]", "this page, or the flags of a command", run_help},
};

// The commands whose first of two words is `word`, for people; "": none.
std::string family(const std::string& word) {
  std::string members;
  for (const Command& command : kCommands) {
    if (command.name.starts_with(word + ' '))
      members += fmt::format("{}{}", members.empty() ? "" : ", ", command.name);
  }
  return members;
}

// The words of a command line that name the command.
std::string command_name(std::span<const std::string> arguments) {
  const bool two = arguments.size() > 1 && !arguments[1].starts_with('-') && !family(arguments[0]).empty();
  return two ? fmt::format("{} {}", arguments[0], arguments[1]) : arguments[0];
}

int dispatch(const std::vector<std::string>& arguments) {
  const std::string name = arguments.empty() ? "help" : command_name(arguments);
  if (name == "--version") {
    fmt::print("tally {}\n", TALLY_VERSION);
    return 0;
  }
  const std::string wanted = name == "--help" || name == "-h" ? "help" : name;
  std::vector<std::string_view> names;
  for (const Command& command : kCommands) {
    names.push_back(command.name);
    if (command.name != wanted) continue;
    if (command.run == nullptr)
      return fail({base::ErrorCode::kUsage, fmt::format("{} is not supported yet", wanted)});
    const auto words = arguments.empty() ? 0 : 1 + std::count(wanted.begin(), wanted.end(), ' ');
    const std::span<const std::string> rest(arguments.begin() + words, arguments.end());
    if (std::find(rest.begin(), rest.end(), "--help") != rest.end()) return show_help(wanted);
    const auto call = parse(command, rest);
    return call ? command.run(*call) : fail(call.error());
  }
  if (const std::string members = family(wanted); !members.empty()) {
    if (std::find(arguments.begin(), arguments.end(), "--help") != arguments.end()) return show_help(wanted);
    return fail({base::ErrorCode::kUsage, fmt::format("{}: which one? {}", wanted, members)});
  }
  const auto near = base::nearest_name(wanted, names);
  return fail({base::ErrorCode::kUsage,
               fmt::format("{}: no such command{}; see tally help", base::escape_for_log(wanted, 64),
                           near ? fmt::format("; did you mean {}?", *near) : "")});
}

}  // namespace

std::span<const Command> commands() { return kCommands; }

}  // namespace tally::apps

int main(int argc, char** argv) {
  tally::apps::tell_crashes();
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe or socket is an error value, not the end
  try {
    return tally::apps::dispatch({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    fmt::print(stderr, "tally: internal fault: {}\n", e.what());
    return 70;
  }
}
