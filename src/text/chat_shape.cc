// What a template wants to see of tools and calls: it is asked, by rendering.

#include "text/chat.h"
#include "text/jinja/print.h"
#include "text/jinja/runtime.h"

#include <algorithm>

namespace tally::text {
namespace {

constexpr size_t kShortIdBytes = 9;
// Words that no template has of its own.
constexpr const char *kTool = "tally_probe_tool", *kArgument = "tally_probe_value";
constexpr const char* kId = "call_0123456789abcdefghijklmn";

Value* member(Value& object, std::string_view name) {
  auto* members = std::get_if<ValueObject>(&object.data);
  if (members == nullptr) return nullptr;
  const auto found =
      std::find_if(members->begin(), members->end(), [name](const auto& m) { return m.first == name; });
  return found == members->end() ? nullptr : &found->second;
}

std::string json_text(const Value& value) {
  jinja::Runtime runtime(TemplateLimits(), 0);
  const jinja::Val text = jinja::to_json(runtime, runtime.from_input(value), {});
  std::string out;
  text.str().for_runs(0, text.str().size(), [&](std::string_view run, bool) { out += run; });
  return out;
}

void shorten(Value* id) {
  auto* text = id == nullptr ? nullptr : std::get_if<std::string>(&id->data);
  if (text != nullptr && text->size() > kShortIdBytes) text->erase(0, text->size() - kShortIdBytes);
}

void fit_call(const ChatShape& shape, Value& call) {
  if (shape.short_ids) shorten(member(call, "id"));
  Value* function = member(call, "function");
  Value* arguments = function == nullptr ? nullptr : member(*function, "arguments");
  if (shape.text_arguments && arguments != nullptr && !std::holds_alternative<std::string>(arguments->data))
    *arguments = json_text(*arguments);
}

void fit_message(const ChatShape& shape, Value& message) {
  if (shape.short_ids) shorten(member(message, "tool_call_id"));
  Value* calls = member(message, "tool_calls");
  auto* list = calls == nullptr ? nullptr : std::get_if<ValueList>(&calls->data);
  if (list == nullptr || list->empty()) return;
  for (Value& call : *list) fit_call(shape, call);
  Value* content = member(message, "content");
  const auto* text = content == nullptr ? nullptr : std::get_if<std::string>(&content->data);
  if (shape.null_content && text != nullptr && text->empty()) *content = nullptr;
}

ChatInput probe_input() {
  const Value tool = ValueObject{
      {"type", "function"},
      {"function",
       ValueObject{{"name", kTool},
                   {"description", "A tool."},
                   {"parameters",
                    ValueObject{{"type", "object"},
                                {"properties", ValueObject{{"p", ValueObject{{"type", "string"}}}}}}}}}};
  ChatInput input;
  input.messages = ValueList{ValueObject{{"role", "user"}, {"content", "a"}}};
  input.tools = ValueList{tool};
  return input;
}

std::string rendered(const ChatTemplate& chat_template, const ChatInput& input) {
  const auto spans = chat_template.render(input);
  std::string text;
  if (!spans) return text;
  for (const TextSpan& span : *spans) text += span.text;
  return text;
}

bool takes(const ChatTemplate& chat_template, const ChatShape& shape) {
  const Value call =
      ValueObject{{"id", kId},
                  {"type", "function"},
                  {"function", ValueObject{{"name", kTool}, {"arguments", ValueObject{{"p", kArgument}}}}}};
  ChatInput input = probe_input();
  auto& messages = std::get<ValueList>(input.messages.data);
  messages.push_back(ValueObject{{"role", "assistant"}, {"content", ""}, {"tool_calls", ValueList{call}}});
  messages.push_back(ValueObject{{"role", "tool"}, {"tool_call_id", kId}, {"content", "b"}});
  return fit_calls(shape, input.messages) &&
         rendered(chat_template, input).find(kArgument) != std::string::npos;
}

}  // namespace

base::Result<void> fit_calls(const ChatShape& shape, Value& messages) {
  auto* list = std::get_if<ValueList>(&messages.data);
  if (list == nullptr) return {};
  try {
    for (Value& message : *list) fit_message(shape, message);
  } catch (const jinja::Fault& fault) {
    return base::Error{base::ErrorCode::kBadData, "arguments of a call as JSON: " + fault.message};
  }
  return {};
}

ChatShape ChatTemplate::shape() const {
  const bool shows_tools = rendered(*this, probe_input()).find(kTool) != std::string::npos;
  for (const bool short_ids : {false, true})
    for (const bool text_arguments : {false, true})
      for (const bool null_content : {false, true}) {
        const ChatShape shape{shows_tools, text_arguments, null_content, short_ids};
        if (takes(*this, shape)) return shape;
      }
  return {.shows_tools = shows_tools};
}

}  // namespace tally::text
