#include "serve/openai/writer.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <iterator>

namespace tally::serve::openai {
namespace {

// Always with a point or an exponent: readers in typed languages take 0 for an integer.
template <class T>
std::string decimal(T v) {
  if (!std::isfinite(v)) return "null";
  std::string text = fmt::format("{}", v);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  std::string repaired;
  if (base::utf8_find_invalid(text) != std::string_view::npos) {
    repaired = base::utf8_replace_invalid(text);
    text = repaired;
  }
  out += '"';
  for (char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
          fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
        else
          out += c;
    }
  }
  out += '"';
}

void Writer::comma() {
  if (!first_) out_ += ',';
  first_ = false;
}

Writer& Writer::open(char c) {
  comma();
  out_ += c;
  first_ = true;
  return *this;
}

Writer& Writer::shut(char c) {
  out_ += c;
  first_ = false;
  return *this;
}

Writer& Writer::key(std::string_view name) {
  comma();
  append_json_string(out_, name);
  out_ += ':';
  first_ = true;
  return *this;
}

Writer& Writer::value(std::string_view text) {
  comma();
  append_json_string(out_, text);
  return *this;
}

Writer& Writer::value(double v) { return raw(decimal(v)); }
Writer& Writer::value(float v) { return raw(decimal(v)); }

Writer& Writer::raw(std::string_view json) {
  comma();
  out_ += json;
  return *this;
}

}  // namespace tally::serve::openai
