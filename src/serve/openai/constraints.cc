#include "serve/openai/constraints.h"

#include "serve/openai/values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

namespace tally::serve::openai {
namespace {

using Kind = sample::ConstraintSpec::Kind;

constexpr size_t kChoicesGivenMax = 1024, kNameBytesMax = 64;

constexpr std::array<std::string_view, 7> kSchemaTypes = {"object",  "array",   "string", "number",
                                                          "integer", "boolean", "null"};
// Keywords that demand something and that the compiler would pass over.
constexpr std::array<std::string_view, 13> kUnsupported = {
    "not",         "if",          "then",        "else",        "dependentRequired", "dependentSchemas",
    "contains",    "minContains", "maxContains", "uniqueItems", "$dynamicRef",       "$recursiveRef",
    "dependencies"};
// Members whose values are schemas, lists of schemas, or schemas by name.
constexpr std::array<std::string_view, 5> kSchemas = {
    "items", "additionalProperties", "unevaluatedProperties", "unevaluatedItems", "propertyNames"};
constexpr std::array<std::string_view, 4> kLists = {"anyOf", "oneOf", "allOf", "prefixItems"};
constexpr std::array<std::string_view, 4> kByName = {"properties", "patternProperties", "$defs",
                                                     "definitions"};

template <size_t N>
bool holds(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class SchemaJudge {
 public:
  explicit SchemaJudge(const Json& root) : root_(root) {}

  std::string judge(const Json& schema, const std::string& path) const {
    if (schema.as<bool>()) return "";
    const auto* object = schema.as<JsonObject>();
    if (!object) return path + " must be a schema: an object, true or false";
    for (const auto& [name, value] : *object) {
      std::string wrong = judge_member(name, value, path + '.' + echo(name));
      if (!wrong.empty()) return wrong;
    }
    return "";
  }

 private:
  std::string judge_member(std::string_view name, const Json& value, const std::string& path) const {
    if (name == "type") return judge_type(value, path);
    if (name == "$ref") return judge_ref(value, path);
    const auto* flag = value.as<bool>();
    if (holds(kUnsupported, name) && !(flag && !*flag && name == "uniqueItems"))
      return path + " is not supported";
    if (holds(kSchemas, name)) {
      const auto* list = value.as<JsonArray>();  // items, in older drafts
      return list ? path + " must be a schema; prefixItems takes a list" : judge(value, path);
    }
    if (holds(kLists, name)) {
      const auto* list = value.as<JsonArray>();
      if (!list || list->empty()) return path + " must be an array of schemas, and not empty";
      for (size_t i = 0; i < list->size(); ++i) {
        std::string wrong = judge((*list)[i], path + '[' + std::to_string(i) + ']');
        if (!wrong.empty()) return wrong;
      }
    }
    if (holds(kByName, name)) {
      const auto* members = value.as<JsonObject>();
      if (!members) return path + " must be an object of schemas";
      for (const auto& [key, schema] : *members) {
        std::string wrong = judge(schema, path + '.' + echo(key));
        if (!wrong.empty()) return wrong;
      }
    }
    if (name == "enum" && (!value.as<JsonArray>() || value.as<JsonArray>()->empty()))
      return path + " must be an array of values, and not empty";
    return "";
  }

  static std::string judge_type(const Json& value, const std::string& path) {
    const auto known = [](const Json& one) {
      const auto* name = one.as<std::string>();
      return name && holds(kSchemaTypes, *name);
    };
    const auto* list = value.as<JsonArray>();
    const bool good = list ? !list->empty() && std::all_of(list->begin(), list->end(), known) : known(value);
    if (good) return "";
    return path + " is " + echo(to_text(value)) +
           ", allowed are object, array, string, number, integer, boolean, null and lists of them";
  }

  std::string judge_ref(const Json& value, const std::string& path) const {
    const auto* ref = value.as<std::string>();
    if (!ref) return path + " must be a string";
    if (*ref != "#" && !ref->starts_with("#/"))
      return path + " is \"" + echo(*ref) + "\", only references into the schema itself (#/...) are followed";
    return resolves(*ref) ? "" : path + " refers to \"" + echo(*ref) + "\", which is not there";
  }

  // A JSON pointer into the document ("#", "#/$defs/node").
  bool resolves(std::string_view pointer) const {
    const Json* at = &root_;
    for (pointer.remove_prefix(1); at && !pointer.empty();) {
      pointer.remove_prefix(1);
      const size_t end = std::min(pointer.find('/'), pointer.size());
      std::string name;
      for (size_t i = 0; i < end; ++i) {
        const bool escaped = pointer[i] == '~' && i + 1 < end;
        name += escaped ? (pointer[i + 1] == '1' ? '/' : '~') : pointer[i];
        i += escaped;
      }
      pointer.remove_prefix(end);
      at = member(*at, name);
    }
    return at != nullptr;
  }

  // Null: there is none. Objects are indexed: a schema can hold thousands of references to thousands of
  // members.
  const Json* member(const Json& of, const std::string& name) const {
    if (const auto* array = of.as<JsonArray>()) {
      size_t index = array->size();
      std::from_chars(name.data(), name.data() + name.size(), index);
      return index < array->size() ? &(*array)[index] : nullptr;
    }
    const auto* object = of.as<JsonObject>();
    if (!object) return nullptr;
    auto& names = index_[object];
    if (names.empty())
      for (const auto& [key, value] : *object) names.emplace(key, &value);
    const auto found = names.find(name);
    return found == names.end() ? nullptr : found->second;
  }

  const Json& root_;
  mutable std::unordered_map<const JsonObject*, std::unordered_map<std::string_view, const Json*>> index_;
};

void set_schema(Fields& fields, Options& out, const Json& schema, const std::string& param) {
  std::string text = to_text(schema);
  constexpr size_t kMost = sample::ConstraintLimits{}.text_bytes;
  const std::string wrong = text.size() > kMost
                                ? param + " has " + std::to_string(text.size()) + " bytes, at most " +
                                      std::to_string(kMost) + " are allowed"
                                : judge_schema(schema, param);
  if (!wrong.empty()) return fields.fail(Code::kInvalidSchema, param, wrong + ".");
  set_constraint(fields, out, {Kind::kJsonSchema, std::move(text)}, param);
}

void read_json_schema(Fields& fields, Fields& format, Options& out) {
  const JsonObject* given = format.get_object("json_schema");
  if (!given)
    return fields.fail(Code::kMissingParameter, "response_format.json_schema",
                       "response_format of type json_schema needs the object json_schema.");
  Fields inner(*given, "response_format.json_schema.");
  const std::string* name = inner.get_string("name");
  const Json* schema = inner.find("schema");
  inner.get_bool("strict");  // the answer always follows the schema
  if (inner.error()) return fields.fail(inner.error()->code, inner.error()->param, inner.error()->message);
  if (!name || name->empty() || name->size() > kNameBytesMax)
    return fields.invalid("response_format.json_schema.name",
                          "response_format.json_schema.name must be a string of 1 to 64 bytes.");
  if (!schema)
    return fields.fail(Code::kMissingParameter, "response_format.json_schema.schema",
                       "response_format.json_schema.schema is missing.");
  set_schema(fields, out, *schema, "response_format.json_schema.schema");
}

void read_response_format(Fields& fields, Options& out) {
  const Json* given = fields.find("response_format");
  const JsonObject* object = fields.get_object("response_format");
  if (!object) return;
  Fields format(*object, "response_format.");
  const std::string* type = format.get_string("type");
  if (!type) return fields.invalid("response_format.type", "response_format.type must be a string.");
  if (*type == "json_object") {
    set_constraint(fields, out, {Kind::kJsonObject, ""}, "response_format");
  } else if (*type == "json_schema") {
    read_json_schema(fields, format, out);
  } else if (*type == "structural_tag") {
    set_constraint(fields, out, {Kind::kStructuralTag, to_text(*given)}, "response_format");
  } else if (*type != "text") {
    fields.invalid("response_format.type",
                   "response_format.type is \"" + echo(*type) +
                       "\", allowed are text, json_object, json_schema and structural_tag.");
  }
  if (format.error()) fields.fail(format.error()->code, format.error()->param, format.error()->message);
}

void read_choice(Fields& fields, const JsonArray& list, Options& out) {
  std::vector<std::string> texts;
  for (const Json& item : list) {
    const auto* text = item.as<std::string>();
    if (!text || text->empty()) break;
    texts.push_back(*text);
  }
  if (list.empty() || list.size() > kChoicesGivenMax || texts.size() != list.size())
    return fields.invalid(
        "structured_outputs.choice",
        "structured_outputs.choice must be an array of 1 to 1024 strings that are not empty.");
  set_constraint(fields, out, sample::choice_of(texts), "structured_outputs.choice");
}

// vLLM's. `json` is a schema, or its text.
void read_structured_outputs(Fields& fields, Options& out) {
  const JsonObject* object = fields.get_object("structured_outputs");
  if (!object) return;
  Fields inner(*object, "structured_outputs.");
  if (const Json* json = inner.find("json")) {
    const auto* text = json->as<std::string>();
    Json parsed;
    if (const auto wrong = text ? parse_json(*text, parsed) : std::nullopt)
      return fields.fail(Code::kInvalidSchema, "structured_outputs.json",
                         "structured_outputs.json: " + wrong->message);
    set_schema(fields, out, text ? parsed : *json, "structured_outputs.json");
  }
  if (inner.get_bool("json_object").value_or(false))
    set_constraint(fields, out, {Kind::kJsonObject, ""}, "structured_outputs.json_object");
  const std::pair<const char*, Kind> texts[] = {
      {"regex", Kind::kRegex}, {"grammar", Kind::kGrammar}, {"structural_tag", Kind::kStructuralTag}};
  for (const auto& [name, kind] : texts)
    if (const std::string* text = inner.get_string(name))
      set_constraint(fields, out, {kind, *text}, std::string("structured_outputs.") + name);
  if (const JsonArray* choice = inner.get_array("choice")) read_choice(fields, *choice, out);
  for (const char* name : {"whitespace_pattern"})
    if (inner.find(name)) inner.fail(Code::kNotSupported, name, std::string(name) + " is not supported yet.");
  for (const char* name : {"disable_any_whitespace", "disable_additional_properties"})
    if (inner.get_bool(name).value_or(false))
      inner.fail(Code::kNotSupported, name, std::string(name) + " is not supported yet.");
  if (inner.error()) return fields.fail(inner.error()->code, inner.error()->param, inner.error()->message);
  if (!out.constraint)
    fields.invalid("structured_outputs",
                   "structured_outputs must hold one of json, json_object, regex, choice, grammar and "
                   "structural_tag.");
}

}  // namespace

void set_constraint(Fields& fields, Options& out, sample::ConstraintSpec spec, const std::string& param) {
  if (out.constraint)
    return fields.invalid(param, "The answer can have one constraint: " + out.constraint->param + " and " +
                                     param + " are two.");
  out.constraint = Constrained{std::move(spec), param};
}

std::string judge_schema(const Json& schema, const std::string& path) {
  return SchemaJudge(schema).judge(schema, path);
}

void read_constraint(Fields& fields, Options& out) {
  read_response_format(fields, out);
  read_structured_outputs(fields, out);
}

}  // namespace tally::serve::openai
