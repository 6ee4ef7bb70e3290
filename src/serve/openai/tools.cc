#include "serve/openai/tools.h"

#include "serve/openai/constraints.h"
#include "serve/openai/json.h"
#include "serve/openai/values.h"

#include <algorithm>
#include <set>

namespace tally::serve::openai {
namespace {

size_t depth_of(const Json& json) {
  size_t deepest = 0;
  if (const auto* list = json.as<JsonArray>())
    for (const Json& item : *list) deepest = std::max(deepest, depth_of(item));
  else if (const auto* object = json.as<JsonObject>())
    for (const auto& [key, value] : *object) deepest = std::max(deepest, depth_of(value));
  else
    return 0;
  return deepest + 1;
}

bool is_name(const std::string& name) {
  return !name.empty() && name.size() <= kToolNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                  c == '-' || c == '.';
         });
}

// What an object of type "function" holds under "function".
const JsonObject* read_function(Fields& fields, const Json& json, const std::string& name) {
  const JsonObject* object = json.as<JsonObject>();
  if (!object) return fields.invalid(name, name + " must be an object."), nullptr;
  Fields outer(*object, name + ".");
  const std::string* type = outer.get_string("type");
  if (outer.find("type") && (!type || *type != "function"))
    return fields.invalid(name + ".type", name + ".type must be \"function\"."), nullptr;
  const JsonObject* function = outer.get_object("function");
  if (outer.error()) return fields.invalid(outer.error()->param, outer.error()->message), nullptr;
  if (!function) fields.fail(Code::kMissingParameter, name + ".function", name + ".function is missing.");
  return function;
}

std::string read_name(Fields& fields, Fields& function, const std::string& path) {
  const std::string* name = function.get_string("name");
  if (name && is_name(*name)) return *name;
  if (name || function.error()) {
    fields.invalid(path + ".name", path + ".name must be 1 to 64 of A-Z a-z 0-9 _ - and '.'" +
                                       (name ? ", not \"" + echo(*name) + "\"." : "."));
  } else {
    fields.fail(Code::kMissingParameter, path + ".name", path + ".name is missing.");
  }
  return {};
}

// A schema that leaves the type open means an object here: arguments are one.
Json with_type(const JsonObject& schema) {
  constexpr std::string_view kTyping[] = {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"};
  const bool is_typed = std::any_of(schema.begin(), schema.end(), [&](const auto& member) {
    return std::find(std::begin(kTyping), std::end(kTyping), member.first) != std::end(kTyping);
  });
  JsonObject typed = schema;
  if (!is_typed) typed.emplace(typed.begin(), "type", Json{std::string("object")});
  return Json{std::move(typed)};
}

std::string read_parameters(Fields& fields, Fields& function, const std::string& path) {
  const std::string param = path + ".parameters";
  const Json* schema = function.find("parameters");
  if (!schema) return to_text(with_type({}));
  const JsonObject* object = schema->as<JsonObject>();
  if (!object) return fields.invalid(param, param + " must be an object, a JSON schema."), "";
  if (const size_t depth = depth_of(*schema); depth > kSchemaDepthMax)
    return fields.invalid(param, param + " is " + std::to_string(depth) + " levels deep, at most " +
                                     std::to_string(kSchemaDepthMax) + " are allowed."),
           "";
  std::string text = to_text(with_type(*object));
  if (text.size() > kSchemaBytesMax)
    fields.invalid(param, param + " has " + std::to_string(text.size()) + " bytes, at most " +
                              std::to_string(kSchemaBytesMax) + " are allowed.");
  return text;
}

Tool read_tool(Fields& fields, const Json& json, const std::string& path) {
  const JsonObject* object = read_function(fields, json, path);
  if (!object) return {};
  const std::string inner = path + ".function";
  Fields function(*object, inner + ".");
  Tool tool;
  tool.name = read_name(fields, function, inner);
  function.get_string("description");
  function.get_bool("strict");
  if (function.error()) fields.invalid(function.error()->param, function.error()->message);
  if (!fields.error()) tool.parameters = read_parameters(fields, function, inner);
  return tool;
}

void read_list(Fields& fields, ToolUse& out) {
  const JsonArray* tools = fields.get_array("tools");
  if (!tools) return;
  if (tools->size() > kToolsMax)
    return fields.invalid("tools", "tools holds " + std::to_string(tools->size()) + " entries, at most " +
                                       std::to_string(kToolsMax) + " are allowed.");
  std::set<std::string> names;
  text::ValueList shown;
  for (size_t i = 0; i < tools->size() && !fields.error(); ++i) {
    const std::string path = "tools[" + std::to_string(i) + "]";
    Tool tool = read_tool(fields, (*tools)[i], path);
    if (!fields.error() && !names.insert(tool.name).second)
      fields.invalid(path + ".function.name", "The name \"" + tool.name + "\" is that of an earlier tool.");
    out.tools.push_back(std::move(tool));
    shown.push_back(to_value((*tools)[i]));
  }
  if (!shown.empty()) out.shown = std::move(shown);
}

void read_named(Fields& fields, const Json& choice, ToolUse& out) {
  const JsonObject* function = read_function(fields, choice, "tool_choice");
  if (!function) return;
  Fields inner(*function, "tool_choice.function.");
  const std::string* name = inner.get_string("name");
  const bool known = name && std::any_of(out.tools.begin(), out.tools.end(),
                                         [&](const Tool& tool) { return tool.name == *name; });
  if (!known)
    return fields.invalid("tool_choice",
                          name ? "tool_choice names \"" + echo(*name) + "\", which is none of tools."
                               : "tool_choice.function.name must be a string.");
  out.choice = ToolUse::Choice::kNamed;
  out.named = *name;
}

void read_choice(Fields& fields, ToolUse& out) {
  const Json* choice = fields.find("tool_choice");
  if (!choice) return;
  const auto* word = choice->as<std::string>();
  if (word && *word == "none") {
    out.choice = ToolUse::Choice::kNone;
  } else if (word && *word == "auto") {
    out.choice = ToolUse::Choice::kAuto;
  } else if (word ? *word != "required" : !choice->as<JsonObject>()) {
    fields.invalid("tool_choice",
                   "tool_choice must be \"none\", \"auto\", \"required\" or an object that names a function" +
                       (word ? ", not \"" + echo(*word) + "\"." : "."));
  } else if (out.tools.empty()) {
    fields.invalid("tool_choice", "tool_choice asks for a call, and tools offers none.");
  } else if (word) {
    out.choice = ToolUse::Choice::kRequired;
  } else {
    read_named(fields, *choice, out);
  }
}

// The schemas that answers will have to follow: what could not be followed is refused, with its path.
void judge_forced(Fields& fields, const ToolUse& use) {
  const JsonArray& tools = *fields.get_array("tools");
  for (size_t i = 0; i < tools.size() && !fields.error(); ++i) {
    if (use.choice == ToolUse::Choice::kNamed && use.tools[i].name != use.named) continue;
    const std::string path = "tools[" + std::to_string(i) + "].function.parameters";
    Fields tool(*tools[i].as<JsonObject>());
    Fields function(*tool.get_object("function"));
    const Json* schema = function.find("parameters");
    const std::string wrong = schema ? judge_schema(*schema, path) : "";
    if (!wrong.empty()) fields.fail(Code::kInvalidSchema, path, wrong + ".");
  }
}

// The arguments of a call: an object, or JSON text of one.
Json read_arguments(Fields& fields, const JsonObject& function, const std::string& path) {
  Fields inner(function);
  const Json* arguments = inner.find("arguments");
  if (!arguments) return Json{JsonObject()};
  if (arguments->as<JsonObject>()) return *arguments;
  const std::string param = path + ".arguments";
  const auto* text = arguments->as<std::string>();
  if (text && text->empty()) return Json{JsonObject()};
  Json parsed;
  if (const auto error = text ? parse_json(*text, parsed) : std::nullopt)
    return fields.invalid(param, param + " is not JSON: " + error->message), Json();
  if (!parsed.as<JsonObject>()) fields.invalid(param, param + " must be an object, or JSON text of one.");
  return parsed;
}

text::Value read_call(Fields& fields, const Json& json, const std::string& path) {
  const JsonObject* function = read_function(fields, json, path);
  if (!function) return {};
  Fields outer(*json.as<JsonObject>(), path + ".");
  const std::string* id = outer.get_string("id");
  if (!id) return fields.invalid(path + ".id", path + ".id must be a string."), text::Value();
  Fields inner(*function, path + ".function.");
  const std::string name = read_name(fields, inner, path + ".function");
  if (fields.error()) return {};
  const Json arguments = read_arguments(fields, *function, path + ".function");
  return text::ValueObject{
      {"id", *id},
      {"type", "function"},
      {"function", text::ValueObject{{"name", name}, {"arguments", to_value(arguments)}}}};
}

}  // namespace

void read_tools(Fields& fields, ToolUse& out) {
  read_list(fields, out);
  if (!fields.error()) read_choice(fields, out);
  if (!fields.error() && out.is_forced()) judge_forced(fields, out);
  out.parallel = fields.get_bool("parallel_tool_calls").value_or(true);
  // The older form of the same.
  for (const char* name : {"functions", "function_call"})
    if (fields.find(name))
      fields.fail(Code::kNotSupported, name,
                  std::string(name) + " is not supported: use tools and tool_choice.");
}

text::Value read_calls(Fields& fields, const Json& calls, const std::string& name) {
  const JsonArray* list = calls.as<JsonArray>();
  if (!list || list->empty() || list->size() > kCallsMax)
    return fields.invalid(name, name + " must be an array of 1 to " + std::to_string(kCallsMax) + " calls."),
           text::Value();
  text::ValueList out;
  for (size_t i = 0; i < list->size() && !fields.error(); ++i)
    out.push_back(read_call(fields, (*list)[i], name + "[" + std::to_string(i) + "]"));
  return out;
}

}  // namespace tally::serve::openai
