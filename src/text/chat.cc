#include "text/chat.h"

#include "base/utf8.h"
#include "text/chat_builtin.h"
#include "text/jinja/builtins.h"
#include "text/jinja/eval.h"
#include "text/jinja/parser.h"
#include "text/jinja/runtime.h"

#include <algorithm>
#include <array>

namespace tally::text {
namespace {

constexpr size_t kMessageBytesMax = 512;

// What the server itself says to a template; a caller's extra variables may not say otherwise. `documents`
// may be given.
constexpr std::array<std::string_view, 5> kInputs = {"messages", "tools", "add_generation_prompt",
                                                     "bos_token", "eos_token"};

base::Error error_of(const jinja::Fault& fault) {
  std::string message = base::escape_for_log(fault.message, kMessageBytesMax);
  if (fault.from_author) return {base::ErrorCode::kBadData, std::move(message)};
  std::string place = "chat template";
  if (fault.line != 0) place += " line " + std::to_string(fault.line);
  if (fault.column != 0) place += " column " + std::to_string(fault.column);
  return {base::ErrorCode::kBadData, place + ": " + message};
}

bool is_reserved(std::string_view name) {
  return std::find(kInputs.begin(), kInputs.end(), name) != kInputs.end() || jinja::find_function(name) >= 0;
}

void set_inputs(jinja::Evaluator& evaluator, jinja::Runtime& runtime, const ChatInput& input) {
  evaluator.set("messages", runtime.from_input(input.messages));
  evaluator.set("tools", runtime.from_input(input.tools));
  evaluator.set("documents", jinja::Val::none());
  evaluator.set("add_generation_prompt", jinja::Val::boolean(input.add_generation_prompt));
  evaluator.set("bos_token", runtime.string(input.bos_token, true));
  evaluator.set("eos_token", runtime.string(input.eos_token, true));
  for (const auto& [name, value] : input.extra) evaluator.set(name, runtime.from_input(value));
}

}  // namespace

struct ChatTemplate::State {
  std::string source;
  std::unique_ptr<const jinja::Program> program;
};

ChatTemplate::ChatTemplate(std::unique_ptr<State> state) : state_(std::move(state)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

base::Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  try {
    auto state = std::make_unique<State>();
    state->source = source;
    state->program = jinja::parse_program(source);
    return ChatTemplate(std::move(state));
  } catch (const jinja::Fault& fault) {
    return error_of(fault);
  }
}

base::Result<ChatTemplate> ChatTemplate::builtin(std::string_view name) {
  for (const BuiltinTemplate& one : builtin_templates()) {
    if (one.name == name) return parse(one.source);
  }
  return base::Error{base::ErrorCode::kUsage, "no built-in chat template '" + base::escape_for_log(name, 64) +
                                                  "': there are " + builtin_names()};
}

std::string ChatTemplate::builtin_names() {
  std::string names;
  for (const BuiltinTemplate& one : builtin_templates())
    names += (names.empty() ? "" : ", ") + std::string(one.name);
  return names;
}

std::string_view ChatTemplate::source() const { return state_->source; }

base::Result<std::vector<TextSpan>> ChatTemplate::render(const ChatInput& input,
                                                         const TemplateLimits& limits) const {
  for (const auto& [name, value] : input.extra)
    if (is_reserved(name))
      return base::Error{base::ErrorCode::kBadData, "chat template: '" + base::escape_for_log(name, 64) +
                                                        "' cannot be given as an extra variable"};
  try {
    jinja::Runtime runtime(limits, input.now_s);
    jinja::Evaluator evaluator(*state_->program, runtime);
    set_inputs(evaluator, runtime, input);
    const jinja::Str text = evaluator.run();
    std::vector<TextSpan> spans;
    text.for_runs(0, text.size(),
                  [&](std::string_view run, bool trusted) { spans.push_back({std::string(run), trusted}); });
    return spans;
  } catch (const jinja::Fault& fault) {
    return error_of(fault);
  }
}

}  // namespace tally::text
