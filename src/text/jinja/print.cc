#include "text/jinja/print.h"

#include "base/utf8.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace tally::text::jinja {
namespace {

bool is_printable(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    case UTF8PROC_CATEGORY_ZS:
      return c == ' ';
    default:
      return true;
  }
}

// Python's repr of a string.
std::string quoted(std::string_view text) {
  const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
  const char quote = single ? '\'' : '"';
  std::string out(1, quote);
  for (size_t i = 0; i < text.size();) {
    const base::Utf8Step step = base::utf8_step(text.substr(i));
    const char32_t c = step.code_point;
    if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\\' || c == static_cast<char32_t>(quote))
      out.append(1, '\\').append(1, static_cast<char>(c));
    else if (step.kind != base::Utf8Step::kValid || is_printable(c))
      out.append(text.substr(i, step.length));
    else if (c < 0x100)
      out += fmt::format("\\x{:02x}", static_cast<uint32_t>(c));
    else if (c < 0x10000)
      out += fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
    else
      out += fmt::format("\\U{:08x}", static_cast<uint32_t>(c));
    i += step.length;
  }
  out.push_back(quote);
  return out;
}

// Text of a value that is no string and no container.
std::string scalar_text(const Val& v) {
  switch (v.kind) {
    case Kind::kUndefined:
      return "";
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return v.b ? "True" : "False";
    case Kind::kInt:
      return std::to_string(v.i);
    case Kind::kFloat:
      return float_text(v.f);
    default:
      return "<" + std::string(type_name(v)) + ">";
  }
}

void write_repr(Builder& out, const Val& v, bool trusted) {
  if (v.is(Kind::kString)) return out.append(quoted(v.str().bytes()), trusted);
  if (v.is(Kind::kUndefined)) return out.append("Undefined", trusted);
  if (v.is(Kind::kList)) {
    const ListObj& list = v.list();
    out.append(list.tuple ? "(" : "[", trusted);
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i != 0) out.append(", ", trusted);
      write_repr(out, list.items[i], trusted);
    }
    if (list.tuple && list.items.size() == 1) out.append(",", trusted);
    return out.append(list.tuple ? ")" : "]", trusted);
  }
  if (!v.is(Kind::kDict)) return out.append(scalar_text(v), trusted);
  out.append("{", trusted);
  bool first = true;
  for (const auto& [key, value] : v.dict().items) {
    if (!first) out.append(", ", trusted);
    first = false;
    write_repr(out, key, trusted);
    out.append(": ", trusted);
    write_repr(out, value, trusted);
  }
  out.append("}", trusted);
}

std::string json_quoted(std::string_view text, bool ascii_only) {
  std::string out = "\"";
  for (size_t i = 0; i < text.size();) {
    const base::Utf8Step step = base::utf8_step(text.substr(i));
    const auto c = static_cast<uint32_t>(step.code_point);
    if (c == '"')
      out += "\\\"";
    else if (c == '\\')
      out += "\\\\";
    else if (c == '\n')
      out += "\\n";
    else if (c == '\r')
      out += "\\r";
    else if (c == '\t')
      out += "\\t";
    else if (c == '\f')
      out += "\\f";
    else if (c == '\b')
      out += "\\b";
    else if (c < 0x20 || (ascii_only && c >= 0x7F && c < 0x10000))
      out += fmt::format("\\u{:04x}", c);
    else if (ascii_only && c >= 0x10000)
      out +=
          fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
    else
      out.append(text.substr(i, step.length));
    i += step.length;
  }
  out.push_back('"');
  return out;
}

class JsonWriter {
 public:
  JsonWriter(Runtime& runtime, Builder& out, const JsonStyle& style, bool trusted)
      : runtime_(runtime), out_(out), style_(style), trusted_(trusted) {}

  void write(const Val& v, int64_t level) {
    if (v.is(Kind::kList)) return write_list(v.list(), level);
    if (v.is(Kind::kDict)) return write_dict(v.dict(), level);
    put(scalar(v));
  }

 private:
  void put(std::string_view text) { out_.append(text, trusted_); }

  std::string scalar(const Val& v) const {
    require_defined(v);
    switch (v.kind) {
      case Kind::kString:
        return json_quoted(v.str().bytes(), style_.ascii_only);
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return v.b ? "true" : "false";
      case Kind::kInt:
        return std::to_string(v.i);
      case Kind::kFloat:
        if (!std::isfinite(v.f)) fail("tojson: " + float_text(v.f) + " has no form in JSON");
        return float_text(v.f);
      default:
        fail("tojson: Object of type " + std::string(type_name(v)) + " is not JSON serializable");
    }
  }

  void new_line(int64_t level) {
    if (style_.indent >= 0) put("\n" + std::string(static_cast<size_t>(level * style_.indent), ' '));
  }

  void write_list(const ListObj& list, int64_t level) {
    if (list.items.empty()) return put("[]");
    put("[");
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i != 0) put(style_.item_separator);
      new_line(level + 1);
      write(list.items[i], level + 1);
    }
    new_line(level);
    put("]");
  }

  void write_dict(const DictObj& dict, int64_t level) {
    if (dict.items.empty()) return put("{}");
    std::vector<const std::pair<Val, Val>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys)
      std::stable_sort(items.begin(), items.end(), [this](const auto* a, const auto* b) {
        return compare(runtime_.meter(), a->first, b->first) < 0;
      });
    put("{");
    for (size_t i = 0; i < items.size(); ++i) {
      if (i != 0) put(style_.item_separator);
      new_line(level + 1);
      const Val& key = items[i]->first;
      put(key.is(Kind::kString) ? scalar(key) : "\"" + scalar(key) + "\"");
      put(style_.key_separator);
      write(items[i]->second, level + 1);
    }
    new_line(level);
    put("}");
  }

  Runtime& runtime_;
  Builder& out_;
  const JsonStyle& style_;
  bool trusted_;
};

}  // namespace

std::string float_text(double v) {
  if (std::isnan(v)) return "nan";
  if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto scientific = std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::scientific);
  const std::string_view text(buffer, static_cast<size_t>(scientific.ptr - buffer));
  int exponent = 0;
  const char* digits = buffer + text.find('e') + 1;
  std::from_chars(*digits == '+' ? digits + 1 : digits, scientific.ptr, exponent);
  if (exponent < -4 || exponent >= 16) return std::string(text);
  char plain[40];
  const auto fixed = std::to_chars(plain, plain + sizeof plain, v, std::chars_format::fixed);
  std::string out(plain, fixed.ptr);
  if (out.find('.') == std::string::npos) out += ".0";
  return out;
}

void print_to(Builder& out, const Val& v) {
  if (v.is(Kind::kString)) return out.append(v.str());
  if (v.is(Kind::kList) || v.is(Kind::kDict)) return write_repr(out, v, all_trusted(v));
  out.append(scalar_text(v), v.trusted);
}

Val to_string(Runtime& runtime, const Val& v) {
  if (v.is(Kind::kString)) return v;
  Builder out(runtime);
  print_to(out, v);
  return out.finish();
}

Val to_json(Runtime& runtime, const Val& v, const JsonStyle& style) {
  Builder out(runtime);
  JsonWriter(runtime, out, style, all_trusted(v)).write(v, 0);
  return out.finish();
}

}  // namespace tally::text::jinja
