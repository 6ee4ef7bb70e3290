#pragma once
// Tools: those a request offers, which of them the model may call, and calls of earlier turns.

#include "text/chat.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tally::serve::openai {

class Fields;
struct Json;

inline constexpr size_t kToolsMax = 128, kToolNameBytesMax = 64;
inline constexpr size_t kSchemaBytesMax = size_t{64} << 10, kSchemaDepthMax = 32;
inline constexpr size_t kCallsMax = 128;  // of one message

struct Tool {
  std::string name;
  std::string parameters;  // a JSON schema of an object, as text
};

struct ToolUse {
  enum class Choice : uint8_t { kNone, kAuto, kRequired, kNamed };
  std::vector<Tool> tools;
  Choice choice = Choice::kAuto;
  std::string named;     // of kNamed, one of the tools
  bool parallel = true;  // more than one call in an answer
  text::Value shown;     // `tools` as it came, for the template

  // The model is told of tools, and its calls are looked for.
  bool is_active() const { return !tools.empty() && choice != Choice::kNone; }
  // It has to call: that takes a constraint.
  bool is_forced() const { return is_active() && choice != Choice::kAuto; }
};

// The fields tools, tool_choice and parallel_tool_calls. What is wrong goes to fields.error(), as below.
void read_tools(Fields& fields, ToolUse& out);
// `tool_calls` of an assistant message, `name` in messages, as templates see it: arguments are objects.
text::Value read_calls(Fields& fields, const Json& calls, const std::string& name);

}  // namespace tally::serve::openai
