#pragma once
// What a model wrote, taken apart: thoughts, content, tool calls. Text in, events out, as soon as they are
// certain.

#include "base/ids.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tally::text {

// How a model spells a call.
enum class ToolFormat : uint8_t {
  kNone,     // in no way that is read here: calls stay content
  kHermes,   // <tool_call>{"name": …, "arguments": {…}}</tool_call>, of Hermes and Qwen
  kLlama3,   // {"name": …, "parameters": {…}} as the whole answer, several split by ";", or after
             // <|python_tag|>
  kMistral,  // [TOOL_CALLS][{"name": …, "arguments": {…}}, …], or [TOOL_CALLS]name[ARGS]{…}
};
// "none", "hermes", "llama3", "mistral"
std::optional<ToolFormat> tool_format_of(std::string_view name);
std::string_view tool_format_name(ToolFormat format);

// A marker that is a control token. Generated text does not spell it out: the detokenizer has to be told, so
// that what reads the marker sees it: the parser, or a client where the parser is told not to.
struct MarkerToken {
  std::string text;
  TokenId id{};
};

struct OutputFormat {
  ToolFormat tools = ToolFormat::kNone;
  bool names_first = false;            // of kMistral: the form with [ARGS]
  std::string think_begin, think_end;  // around thoughts; empty: they are not looked for
  std::vector<MarkerToken> call_tokens, think_tokens;  // those left to clients: of all formats

  bool is_plain() const { return tools == ToolFormat::kNone && think_begin.empty(); }
  // For a chat without tools.
  OutputFormat without_calls() const {
    return {.think_begin = think_begin,
            .think_end = think_end,
            .call_tokens = tools == ToolFormat::kNone ? call_tokens : std::vector<MarkerToken>(),
            .think_tokens = think_tokens};
  }
  // Of all the markers, for DetokenizerOptions::spelled.
  std::vector<TokenId> spelled() const;
};

// What was asked for.
struct OutputWish {
  std::optional<ToolFormat> tools;  // nothing: as template and vocabulary tell; kNone: clients read the calls
  bool reasoning = true;            // look for thoughts; false: clients do
};

// From the markers that the template writes; where it writes none of a call, from those of the vocabulary.
OutputFormat find_output_format(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                                const OutputWish& wish);
// Control tokens that are markers of any format: a grammar may ask for them, though they give no text.
std::vector<TokenId> hidden_markers(const Tokenizer& tokenizer);
// The text that begins a call, where the format has one ("" for llama3's bare object and none).
std::string_view call_marker(ToolFormat format);
// Whether a prompt ends with open thoughts, so that the model goes on inside them. Only what the template
// wrote counts, never what a user did.
bool opens_thoughts(const std::vector<TextSpan>& prompt, const OutputFormat& format);

struct OutputEvent {
  enum class Kind : uint8_t {
    kContent,
    kReasoning,
    kCallBegin,  // text: the name
    kArguments,  // of the call that began last: bytes as the model wrote them
    kCallEnd,    // text: empty
  };
  Kind kind = Kind::kContent;
  std::string text;
  bool operator==(const OutputEvent&) const = default;
};

// Ensures: joined, the events are the same wherever the text is cut. Nothing of a marker comes out as
// content, and nothing else is lost but white space beside a marker and, of the object of a call, what stands
// around its name and arguments: a call that is none (not JSON, no name, too long) comes out as content,
// marker and all. Thoughts can only be the first that is said. Threads: one at a time.
class OutputParser {
 public:
  // in_thoughts: see opens_thoughts.
  OutputParser(const OutputFormat& format, bool in_thoughts);
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;
  ~OutputParser();

  std::vector<OutputEvent> feed(std::string_view text);
  // What was held back: call once at the end.
  std::vector<OutputEvent> finish();

  bool in_thoughts() const;
  // A call has begun and not ended.
  bool in_call() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tally::text
