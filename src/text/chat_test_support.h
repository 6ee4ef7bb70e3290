#pragma once
// For the chat tests: JSON to template values, and the golden cases.

#include "text/chat.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

namespace tally::text::chat_test {

using Json = nlohmann::ordered_json;

inline Value value_of(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    ValueList list;
    for (const Json& item : json) list.push_back(value_of(item));
    return list;
  }
  ValueObject object;
  if (!json.is_object()) return {};
  for (const auto& [key, item] : json.items()) object.emplace_back(key, value_of(item));
  return object;
}

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

inline std::string text_of(const std::vector<TextSpan>& spans) {
  std::string out;
  for (const TextSpan& span : spans) out += span.text;
  return out;
}

}  // namespace tally::text::chat_test
