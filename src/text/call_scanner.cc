#include "text/call_scanner.h"

#include "base/ascii.h"
#include "base/utf8.h"

#include <charconv>
#include <utility>

namespace tally::text {
namespace {

bool is_scalar_byte(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' || c == '-' ||
         c == '.';
}

// The four digits at `at`, or nothing a code unit can be.
uint32_t code_unit(std::string_view text, size_t at) {
  constexpr uint32_t kNone = 0x10000;
  if (text.size() - at < 4) return kNone;
  uint32_t unit = 0;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + at + 4, unit, 16);
  return error == std::errc() && end == text.data() + at + 4 ? unit : kNone;
}

char escaped_byte(char c) {
  constexpr std::string_view kLetters = "bfnrt", kBytes = "\b\f\n\r\t";
  const size_t at = kLetters.find(c);
  return at == std::string_view::npos ? c : kBytes[at];
}

}  // namespace

std::string json_unquoted(std::string_view quoted) {
  const std::string_view text = quoted.substr(1, quoted.size() - 2);
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    if (text[++i] != 'u') {
      out += escaped_byte(text[i]);
      continue;
    }
    uint32_t point = code_unit(text, i + 1);
    if (point > 0xFFFF) {
      out += 'u';
      continue;
    }
    i += 4;
    if (point >= 0xD800 && point < 0xDC00 && text.substr(i + 1).starts_with("\\u")) {
      const uint32_t low = code_unit(text, i + 3);
      if (low >= 0xDC00 && low < 0xE000) {
        point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
        i += 6;
      }
    }
    base::utf8_append(out, point >= 0xD800 && point < 0xE000 ? U'\uFFFD' : static_cast<char32_t>(point));
  }
  return out;
}

ValueScanner::Step ValueScanner::feed_string(char c) {
  if (std::exchange(escaped_, false)) return Step::kMore;
  escaped_ = c == '\\';
  if (c != '"') return Step::kMore;
  in_string_ = false;
  return depth_ == 0 ? Step::kDone : Step::kMore;
}

ValueScanner::Step ValueScanner::feed(char c) {
  if (in_string_) return feed_string(c);
  const bool ends_scalar = c == '}' || c == ']' || c == ',' || base::is_json_space(c);
  if (is_scalar_ && ends_scalar) return Step::kDoneBefore;
  if (is_scalar_byte(c)) {
    is_scalar_ = depth_ == 0;
    return Step::kMore;
  }
  if (is_scalar_) return Step::kBad;
  if (c == '"') {
    in_string_ = true;
    return Step::kMore;
  }
  if (c == '{' || c == '[') {
    ++depth_;
    return Step::kMore;
  }
  if (depth_ == 0) return Step::kBad;
  if (c == '}' || c == ']') return --depth_ == 0 ? Step::kDone : Step::kMore;
  return c == ',' || c == ':' || base::is_json_space(c) ? Step::kMore : Step::kBad;
}

CallScanner CallScanner::of_arguments(std::string name) {
  CallScanner scanner(false);
  scanner.is_whole_ = false;
  scanner.name_ = std::move(name);
  scanner.member_ = Member::kArguments;
  scanner.next_ = Next::kValue;
  return scanner;
}

std::string CallScanner::take_arguments() { return std::exchange(arguments_, {}); }

CallScanner::Step CallScanner::feed(char c) {
  if (in_value_) return feed_value(c);
  if (next_ == Next::kNothing) return Step::kBad;
  return base::is_json_space(c) ? Step::kMore : feed_mark(c);
}

// A byte between values.
CallScanner::Step CallScanner::feed_mark(char c) {
  switch (next_) {
    case Next::kObject:
      if (c != '{') return Step::kBad;
      next_ = Next::kKeyOrEnd;
      return Step::kMore;
    case Next::kKeyOrEnd:
    case Next::kKey:
      if (c == '}' && next_ == Next::kKeyOrEnd) return end_object();
      return c == '"' ? begin_value(c) : Step::kBad;
    case Next::kColon:
      if (c != ':') return Step::kBad;
      next_ = Next::kValue;
      return Step::kMore;
    case Next::kValue:
      return begin_value(c);
    case Next::kCommaOrEnd:
      if (c == '}') return end_object();
      if (c != ',') return Step::kBad;
      next_ = Next::kKey;
      return Step::kMore;
    case Next::kNothing:
      break;
  }
  return Step::kBad;
}

CallScanner::Step CallScanner::begin_value(char c) {
  const bool is_arguments = next_ == Next::kValue && member_ == Member::kArguments;
  // Some models write the arguments as a string that holds JSON.
  if (is_arguments && c != '{' && c != '"') return Step::kBad;
  value_ = ValueScanner();
  held_.clear();
  in_value_ = true;
  passes_ = is_arguments && c == '{';
  has_arguments_ = has_arguments_ || passes_;
  return feed_value(c);
}

CallScanner::Step CallScanner::feed_value(char c) {
  const ValueScanner::Step step = value_.feed(c);
  if (step == ValueScanner::Step::kBad) return Step::kBad;
  const bool is_needed = next_ != Next::kValue || member_ != Member::kOther;
  if (step != ValueScanner::Step::kDoneBefore && is_needed) (passes_ ? arguments_ : held_) += c;
  if (step == ValueScanner::Step::kMore) return Step::kMore;
  in_value_ = false;
  if (!(next_ == Next::kValue ? end_value() : end_key())) return Step::kBad;
  if (next_ == Next::kNothing) return Step::kDone;
  return step == ValueScanner::Step::kDoneBefore ? feed(c) : Step::kMore;
}

bool CallScanner::end_key() {
  const std::string key = json_unquoted(held_);
  next_ = Next::kColon;
  member_ = Member::kOther;
  if (begun()) return true;
  if (key == "name") {
    member_ = Member::kName;
    return name_.empty();
  }
  if (key == "arguments" || key == "parameters") {
    member_ = Member::kArguments;
    return !has_arguments_;
  }
  return !is_bare_ || key == "type" || key == "id";
}

bool CallScanner::end_value() {
  next_ = is_whole_ ? Next::kCommaOrEnd : Next::kNothing;
  if (member_ == Member::kName) {
    if (held_.front() != '"') return false;
    name_ = json_unquoted(held_);
    return !name_.empty();
  }
  if (member_ == Member::kArguments && !passes_) {
    arguments_ += json_unquoted(held_);
    has_arguments_ = true;
  }
  return true;
}

CallScanner::Step CallScanner::end_object() {
  if (name_.empty() || (is_bare_ && !has_arguments_)) return Step::kBad;
  if (!std::exchange(has_arguments_, true)) arguments_ = "{}";
  next_ = Next::kNothing;
  return Step::kDone;
}

}  // namespace tally::text
