#include "serve/openai/values.h"

#include "serve/openai/writer.h"

namespace tally::serve::openai {
namespace {

// Recursion: parse_json bounds the depth.
void write(Writer& w, const Json& json) {
  if (const auto* v = json.as<bool>()) {
    w.value(*v);
  } else if (const auto* whole = json.as<int64_t>()) {
    w.value(*whole);
  } else if (const auto* large = json.as<uint64_t>()) {
    w.value(*large);
  } else if (const auto* real = json.as<double>()) {
    w.value(*real);
  } else if (const auto* text = json.as<std::string>()) {
    w.value(*text);
  } else if (const auto* list = json.as<JsonArray>()) {
    w.begin_array();
    for (const Json& item : *list) write(w, item);
    w.end_array();
  } else if (const auto* object = json.as<JsonObject>()) {
    w.begin_object();
    for (const auto& [key, value] : *object) {
      w.key(key);
      write(w, value);
    }
    w.end_object();
  } else {
    w.null();
  }
}

}  // namespace

text::Value to_value(const Json& json) {
  if (const auto* v = json.as<bool>()) return *v;
  if (const auto* v = json.as<int64_t>()) return *v;
  if (const auto* v = json.as<uint64_t>()) return static_cast<double>(*v);
  if (const auto* v = json.as<double>()) return *v;
  if (const auto* v = json.as<std::string>()) return *v;
  if (const auto* v = json.as<JsonArray>()) {
    text::ValueList list;
    list.reserve(v->size());
    for (const Json& item : *v) list.push_back(to_value(item));
    return list;
  }
  if (const auto* v = json.as<JsonObject>()) {
    text::ValueObject object;
    object.reserve(v->size());
    for (const auto& [key, value] : *v) object.emplace_back(key, to_value(value));
    return object;
  }
  return {};
}

std::string to_text(const Json& json) {
  Writer w;
  write(w, json);
  return w.take();
}

}  // namespace tally::serve::openai
