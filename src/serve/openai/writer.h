#pragma once
// Writes one line of JSON. Strings that are not UTF-8 get U+FFFD, numbers are the shortest that read back the
// same.

#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace tally::serve::openai {

class Writer {
 public:
  Writer& begin_object() { return open('{'); }
  Writer& end_object() { return shut('}'); }
  Writer& begin_array() { return open('['); }
  Writer& end_array() { return shut(']'); }
  Writer& key(std::string_view name);
  Writer& value(std::string_view text);
  Writer& value(const char* text) { return value(std::string_view(text)); }
  Writer& value(const std::string& text) { return value(std::string_view(text)); }
  Writer& value(bool v) { return raw(v ? "true" : "false"); }
  Writer& value(double v);
  Writer& value(float v);
  template <std::integral T>
    requires(!std::same_as<T, bool>)
  Writer& value(T v) {
    return raw(std::to_string(v));
  }
  Writer& null() { return raw("null"); }
  // JSON already written.
  Writer& raw(std::string_view json);
  // A natural logarithm of a probability: -infinity is -9999.0.
  Writer& logprob(float v) { return value(std::isinf(v) ? -9999.0f : v); }
  // Milliseconds, to the microsecond.
  Writer& milliseconds(double ms) { return value(std::round(ms * 1000) / 1000); }

  std::string take() { return std::move(out_); }

 private:
  Writer& open(char c);
  Writer& shut(char c);
  void comma();

  std::string out_;
  bool first_ = true;  // nothing before the next value at this level
};

// `text` as a JSON string, with quotes.
void append_json_string(std::string& out, std::string_view text);

}  // namespace tally::serve::openai
