#pragma once
// Chat templates: a Jinja subset with budgets. Messages in, prompt spans out; text that came from a user
// stays untrusted, so it can never become a control token.

#include "base/result.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tally::text {

// The values a template sees: JSON's, with object order kept.
struct Value;
using ValueList = std::vector<Value>;
using ValueObject = std::vector<std::pair<std::string, Value>>;
struct Value {
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, ValueList, ValueObject> data = nullptr;

  Value() = default;
  Value(std::nullptr_t) {}
  Value(bool v) : data(v) {}
  Value(int64_t v) : data(v) {}
  Value(int v) : data(int64_t{v}) {}
  Value(double v) : data(v) {}
  Value(std::string v) : data(std::move(v)) {}
  Value(const char* v) : data(std::string(v)) {}
  Value(ValueList v) : data(std::move(v)) {}
  Value(ValueObject v) : data(std::move(v)) {}
};

struct ChatInput {
  Value messages;  // list of {"role", "content", …}; calls have the template's shape (fit_calls)
  Value tools;     // list of {"type", "function": {"name", …}}; null when absent
  bool add_generation_prompt = true;
  std::string bos_token, eos_token;
  ValueObject extra;  // chat_template_kwargs and the like; names of the above are refused
  int64_t now_s = 0;  // for strftime_now, Unix seconds UTC
};

// How a template takes calls of earlier turns: they differ.
struct ChatShape {
  bool shows_tools = false;     // what is given as `tools` comes up in the prompt
  bool text_arguments = false;  // wants arguments as JSON text, not as an object
  bool null_content = false;    // wants null as the content beside calls, not ""
  bool short_ids = false;       // ids of calls have nine characters, or it refuses
};
// Gives `messages` (assistant messages with tool_calls: arguments as objects, content a string) that shape.
// Ids that are longer than nine characters keep their last nine. Errors: kBadData with the name of the budget
// that arguments passed, written as text.
base::Result<void> fit_calls(const ChatShape& shape, Value& messages);

struct TemplateLimits {
  uint64_t steps_max = 1'000'000;
  size_t live_bytes_max = 16u << 20;
  size_t output_bytes_max = 8u << 20;
  uint32_t depth_max = 100;
  uint32_t calls_max = 32;  // macro recursion
  uint32_t time_max_ms = 250;
};

class ChatTemplate {
 public:
  // Errors: kBadData with line and column (not UTF-8, syntax, too deep, what is not supported by name), or
  // the size if it is more than 1 MiB.
  static base::Result<ChatTemplate> parse(std::string_view source);
  // A template shipped with tally, by name (`builtin:NAME`). Errors: kUsage, listing the names.
  static base::Result<ChatTemplate> builtin(std::string_view name);
  // "chatml, gemma, llama3"
  static std::string builtin_names();

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // Found by rendering small chats with a call, of each shape until one is taken.
  ChatShape shape() const;

  // Renders to spans; adjacent spans of one trust are joined. Errors: kBadData with the template's own
  // message (raise_exception), or the name of the budget that was passed.
  base::Result<std::vector<TextSpan>> render(const ChatInput& input, const TemplateLimits& limits = {}) const;
  // As it was given.
  std::string_view source() const;

 private:
  struct State;
  explicit ChatTemplate(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tally::text
