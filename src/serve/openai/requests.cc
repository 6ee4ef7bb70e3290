#include "serve/openai/requests.h"

#include "serve/openai/json.h"
#include "serve/openai/options.h"
#include "serve/openai/values.h"

#include <algorithm>

namespace tally::serve::openai {
namespace {

constexpr size_t kKwargsMax = 16, kKwargBytesMax = 256;
constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};
// Of a message; the others go to the template as they are.
constexpr std::string_view kReadFields[] = {"role", "content", "tool_calls"};
// What the server itself gives to a template.
constexpr std::string_view kTemplateInputs[] = {"messages",        "tools",       "add_generation_prompt",
                                                "bos_token",       "eos_token",   "documents",
                                                "raise_exception", "strftime_now"};

template <class List>
bool contains(const List& list, std::string_view word) {
  return std::find(std::begin(list), std::end(list), word) != std::end(list);
}

std::optional<ApiError> parse_object(std::string_view body, Json& json) {
  if (auto error = parse_json(body, json)) return error;
  if (!json.as<JsonObject>())
    return ApiError{Code::kInvalidJson, "The request body is not a JSON object (byte 0)."};
  return std::nullopt;
}

// A list of text parts, joined by line breaks; other kinds of parts are not built.
std::string join_parts(Fields& fields, const JsonArray& parts, const std::string& name) {
  std::string text;
  if (parts.size() > kPartsMax) fields.invalid(name, name + " holds more than 256 parts.");
  for (size_t i = 0; i < parts.size() && !fields.error(); ++i) {
    const std::string part_name = name + "[" + std::to_string(i) + "]";
    const JsonObject* object = parts[i].as<JsonObject>();
    if (!object) return fields.invalid(part_name, part_name + " must be an object."), text;
    Fields part(*object, part_name + ".");
    const std::string* type = part.get_string("type");
    if (type && *type != "text") {
      fields.fail(Code::kNotSupported, part_name + ".type", "Only content parts of type text are supported.");
      return text;
    }
    const std::string* piece = type ? part.get_string("text") : nullptr;
    if (!piece)
      return fields.invalid(part_name, part_name + " must have type \"text\" and a string text."), text;
    if (i > 0) text += '\n';
    text += *piece;
  }
  return text;
}

// A string that a message has to have. One of another kind is there, and wrong.
const std::string* need_string(Fields& fields, Fields& message, const std::string& path,
                               std::string_view name) {
  const std::string* text = message.get_string(name);
  if (!text && !message.error())
    message.fail(Code::kMissingParameter, name, path + "." + std::string(name) + " is missing.");
  if (message.error()) fields.fail(message.error()->code, message.error()->param, message.error()->message);
  return text;
}

// The fields that only some roles have, checked and in the shape that templates see.
void read_role_fields(Fields& fields, Fields& message, const std::string& name, text::ValueObject& out) {
  const std::string& role = std::get<std::string>(out.front().second.data);
  if (role == "tool" && !need_string(fields, message, name, "tool_call_id")) return;
  const Json* calls = role == "assistant" ? message.find("tool_calls") : nullptr;
  if (calls) out.emplace_back("tool_calls", read_calls(fields, *calls, name + ".tool_calls"));
  message.get_string("reasoning_content");
  if (message.error()) fields.invalid(message.error()->param, message.error()->message);
}

std::string known_roles() {
  std::string list;
  for (const std::string_view role : kRoles) list += (list.empty() ? "" : ", ") + std::string(role);
  return list;
}

text::Value read_message(Fields& fields, const Json& json, const std::string& name) {
  const JsonObject* object = json.as<JsonObject>();
  if (!object) return fields.invalid(name, name + " must be an object."), text::Value();
  Fields message(*object, name + ".");
  const std::string* role = need_string(fields, message, name, "role");
  if (!role) return {};
  if (!contains(kRoles, *role))
    return fields.invalid(name + ".role", name + ".role is \"" + echo(*role) + "\", and must be one of " +
                                              known_roles() + "."),
           text::Value();
  text::ValueObject out;
  // "developer" is OpenAI's newer word for system; templates know the older one.
  out.emplace_back("role", *role == "developer" ? std::string("system") : *role);
  const Json* content = message.find("content");
  if (!content) {
    if (*role != "assistant")
      fields.fail(Code::kMissingParameter, name + ".content", name + ".content is missing.");
    out.emplace_back("content", "");
  } else if (const auto* text = content->as<std::string>()) {
    out.emplace_back("content", *text);
  } else if (const auto* parts = content->as<JsonArray>()) {
    out.emplace_back("content", join_parts(fields, *parts, name + ".content"));
  } else {
    fields.invalid(name + ".content", name + ".content must be a string or an array of parts.");
  }
  read_role_fields(fields, message, name, out);
  for (const auto& [key, value] : *object)
    if (!contains(kReadFields, key) && !value.is_null()) out.emplace_back(key, to_value(value));
  return out;
}

void read_messages(Fields& fields, ChatRequest& out) {
  const JsonArray* messages = fields.get_array("messages");
  if (!messages) return fields.fail(Code::kMissingParameter, "messages", "The field messages is missing.");
  if (messages->empty() || messages->size() > kMessagesMax)
    return fields.invalid("messages", "messages must hold 1 to 1024 messages.");
  text::ValueList list;
  for (size_t i = 0; i < messages->size() && !fields.error(); ++i)
    list.push_back(read_message(fields, (*messages)[i], "messages[" + std::to_string(i) + "]"));
  out.messages = std::move(list);
}

void read_template_kwargs(Fields& fields, ChatRequest& out) {
  if (fields.find("chat_template"))
    fields.invalid("chat_template",
                   "The chat template is the server's; chat_template in a request is refused.");
  out.add_generation_prompt = fields.get_bool("add_generation_prompt").value_or(true);
  const JsonObject* kwargs = fields.get_object("chat_template_kwargs");
  if (!kwargs) return;
  if (kwargs->size() > kKwargsMax)
    return fields.invalid("chat_template_kwargs", "chat_template_kwargs holds more than 16 entries.");
  for (const auto& [key, value] : *kwargs) {
    const auto* text = value.as<std::string>();
    if (contains(kTemplateInputs, key))
      return fields.invalid("chat_template_kwargs",
                            "chat_template_kwargs may not set \"" + echo(key) + "\".");
    if (key.size() > kKwargBytesMax || (text && text->size() > kKwargBytesMax) || value.as<JsonArray>() ||
        value.as<JsonObject>())
      return fields.invalid("chat_template_kwargs",
                            "Each of chat_template_kwargs must be a scalar of at most 256 bytes.");
    out.template_kwargs.emplace_back(key, to_value(value));
  }
}

void read_prompts(Fields& fields, size_t vocab_size, CompletionRequest& out) {
  const Json* prompt = fields.find("prompt");
  if (!prompt) return fields.fail(Code::kMissingParameter, "prompt", "The field prompt is missing.");
  if (const auto* text = prompt->as<std::string>()) {
    out.prompts.push_back({.text = *text});
    return;
  }
  const auto* list = prompt->as<JsonArray>();
  if (!list || list->empty())
    return fields.invalid(
        "prompt", "prompt must be a string, strings, token ids or lists of token ids, and not empty.");
  const Json& first = list->front();
  const bool strings = first.as<std::string>(), lists = first.as<JsonArray>();
  if (!strings && !lists) {
    out.prompts.push_back({.ids = read_ids(fields, *list, "prompt", vocab_size), .is_ids = true});
    return;
  }
  if (list->size() > kPromptsMax) return fields.invalid("prompt", "prompt holds more than 64 prompts.");
  for (size_t i = 0; i < list->size() && !fields.error(); ++i) {
    const std::string name = "prompt[" + std::to_string(i) + "]";
    const auto* text = (*list)[i].as<std::string>();
    const auto* ids = (*list)[i].as<JsonArray>();
    if (strings ? !text : !ids) return fields.invalid(name, name + " is of another kind than prompt[0].");
    if (ids && ids->empty()) return fields.invalid(name, name + " is empty.");
    if (text)
      out.prompts.push_back({.text = *text});
    else
      out.prompts.push_back({.ids = read_ids(fields, *ids, name, vocab_size), .is_ids = true});
  }
}

}  // namespace

std::optional<ApiError> parse_chat(std::string_view body, size_t vocab_size, ChatRequest& out) {
  Json json;
  if (auto error = parse_object(body, json)) return error;
  Fields fields(*json.as<JsonObject>());
  read_options(fields, Route::kChat, vocab_size, out.options);
  read_tools(fields, out.tool_use);
  read_messages(fields, out);
  read_template_kwargs(fields, out);
  return fields.error();
}

std::optional<ApiError> parse_completion(std::string_view body, size_t vocab_size, CompletionRequest& out) {
  Json json;
  if (auto error = parse_object(body, json)) return error;
  Fields fields(*json.as<JsonObject>());
  read_options(fields, Route::kCompletion, vocab_size, out.options);
  read_prompts(fields, vocab_size, out);
  if (out.prompts.size() * out.options.choices.best_of > kSequencesMax)
    fields.invalid(out.options.choices.best_of > out.options.choices.n ? "best_of" : "n",
                   "The prompts times their sequences are more than 256.");
  return fields.error();
}

std::optional<ApiError> parse_tokenize(std::string_view body, TokenizeRequest& out) {
  Json json;
  if (auto error = parse_object(body, json)) return error;
  Fields fields(*json.as<JsonObject>());
  if (const std::string* model = fields.get_string("model")) out.model = *model;
  const std::string* prompt = fields.get_string("prompt");
  if (!prompt) fields.fail(Code::kMissingParameter, "prompt", "The field prompt is missing.");
  if (prompt) out.prompt = *prompt;
  out.add_special_tokens = fields.get_bool("add_special_tokens").value_or(true);
  return fields.error();
}

std::optional<ApiError> parse_detokenize(std::string_view body, size_t vocab_size, DetokenizeRequest& out) {
  Json json;
  if (auto error = parse_object(body, json)) return error;
  Fields fields(*json.as<JsonObject>());
  if (const std::string* model = fields.get_string("model")) out.model = *model;
  const JsonArray* tokens = fields.get_array("tokens");
  if (!tokens) fields.fail(Code::kMissingParameter, "tokens", "The field tokens is missing.");
  if (tokens) out.tokens = read_ids(fields, *tokens, "tokens", vocab_size);
  return fields.error();
}

}  // namespace tally::serve::openai
