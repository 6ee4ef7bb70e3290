#include "sample/constraint_text.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tally::sample {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;
using Kind = ConstraintSpec::Kind;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// The number that stands at `at`, saturated; moves behind it. Nothing: none stands there.
std::optional<uint64_t> read_number(std::string_view text, size_t& at) {
  constexpr uint64_t kMost = uint64_t{1} << 40;
  if (at >= text.size() || !is_digit(text[at])) return std::nullopt;
  uint64_t value = 0;
  for (; at < text.size() && is_digit(text[at]); ++at)
    value = std::min(kMost, value * 10 + static_cast<uint64_t>(text[at] - '0'));
  return value;
}

// {n}, {n,} and {n,m} outside of classes and, in a grammar, of quotes.
Result<void> judge_repetitions(std::string_view text, bool quotes, uint32_t most) {
  bool quoted = false, in_class = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\') {
      ++i;
    } else if (quoted) {
      quoted = c != '"';
    } else if (in_class) {
      in_class = c != ']';
    } else if (c == '"' && quotes) {
      quoted = true;
    } else if (c == '[') {
      in_class = true;
    } else if (c == '{') {
      size_t at = i + 1;
      while (at < text.size() && (is_digit(text[at]) || is_space(text[at]) || text[at] == ',')) {
        const auto bound = read_number(text, at);
        if (bound && *bound > most) {
          return Error{ErrorCode::kBadData,
                       fmt::format("a repetition has the bound {}, at most {} is allowed", *bound, most)};
        }
        if (!bound) ++at;
      }
    }
  }
  return {};
}

// A string of a JSON text with the escapes that a regex consists of undone. `at`: behind the opening quote;
// moves behind the closing one.
std::string read_string(std::string_view text, size_t& at) {
  std::string out;
  for (; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\' && at + 1 < text.size()) ++at;
    out += text[at];
  }
  ++at;
  return out;
}

// The bounds that a schema can state, and the patterns in it.
Result<void> judge_schema(std::string_view text, const ConstraintLimits& limits) {
  constexpr std::array<std::string_view, 6> kBounds = {"minLength", "maxLength",     "minItems",
                                                       "maxItems",  "minProperties", "maxProperties"};
  for (size_t at = 0; at < text.size();) {
    if (text[at++] != '"') continue;
    const std::string name = read_string(text, at);
    while (at < text.size() && is_space(text[at])) ++at;
    if (at >= text.size() || text[at] != ':') {  // no key, so perhaps a pattern
      TALLY_TRY_VOID(judge_repetitions(name, false, limits.pattern_repetition));
      continue;
    }
    ++at;
    while (at < text.size() && is_space(text[at])) ++at;
    if (std::find(kBounds.begin(), kBounds.end(), name) == kBounds.end()) continue;
    const auto bound = read_number(text, at);
    if (!bound || *bound <= limits.repetition) continue;
    return Error{ErrorCode::kBadData,
                 fmt::format("{} is {}, at most {} is allowed", name, *bound, limits.repetition)};
  }
  return {};
}

// Brackets inside brackets, wherever they stand: a text in quotes may be a pattern.
uint32_t nesting(std::string_view text) {
  uint32_t round = 0, other = 0, most = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '(') ++round;
    if (c == ')' && round > 0) --round;
    if (c == '[' || c == '{') ++other;
    if ((c == ']' || c == '}') && other > 0) --other;
    most = std::max({most, round, other});
  }
  return most;
}

bool is_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) || c == '_' || c == '-' || c == '.';
}

// The rules that the alternatives of a printed body, ((x "a") | (y)), begin with.
std::vector<std::string_view> first_rules(std::string_view body) {
  std::vector<std::string_view> out;
  bool at_first = true;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (c == '|') {
      at_first = true;
    } else if (c == '"' || c == '[') {
      const char end = c == '"' ? '"' : ']';
      for (++i; i < body.size() && body[i] != end; ++i) i += body[i] == '\\';
      at_first = false;
    } else if (is_name(c)) {
      size_t stop = i;
      while (stop < body.size() && is_name(body[stop])) ++stop;
      const bool is_call = stop < body.size() && body[stop] == '(';  // Token(...), Regex(...)
      if (at_first && !is_call) out.push_back(body.substr(i, stop - i));
      at_first = false;
      i = stop - 1;
    }
  }
  return out;
}

}  // namespace

std::string left_recursive_rule(std::string_view printed) {
  std::unordered_map<std::string_view, std::vector<std::string_view>> first;
  for (size_t at = 0; at < printed.size();) {
    const std::string_view line = printed.substr(at, std::min(printed.find('\n', at), printed.size()) - at);
    at += line.size() + 1;
    size_t name = 0;
    while (name < line.size() && is_name(line[name])) ++name;
    const size_t body = line.find("::=");
    if (body != std::string_view::npos) first[line.substr(0, name)] = first_rules(line.substr(body + 3));
  }
  // Depth first without recursion: grey rules are on the way from the one at the bottom.
  enum class Mark : uint8_t { kWhite, kGrey, kBlack };
  std::unordered_map<std::string_view, Mark> marks;
  std::vector<std::pair<std::string_view, size_t>> way;
  for (const auto& [root, unused] : first) {
    if (marks[root] == Mark::kWhite) way.emplace_back(root, 0);
    while (!way.empty()) {
      const auto [rule, next] = way.back();
      marks[rule] = Mark::kGrey;
      const std::vector<std::string_view>& begins = first[rule];
      if (next == begins.size()) {
        marks[rule] = Mark::kBlack;
        way.pop_back();
        continue;
      }
      ++way.back().second;
      const Mark mark = marks[begins[next]];
      if (mark == Mark::kGrey) return std::string(begins[next]);
      if (mark == Mark::kWhite) way.emplace_back(begins[next], 0);
    }
  }
  return "";
}

Result<void> judge_text(const ConstraintSpec& spec, const ConstraintLimits& limits) {
  const std::string_view text = spec.text;
  if (text.size() > limits.text_bytes) {
    return Error{ErrorCode::kBadData,
                 fmt::format("it has {} bytes, at most {} are allowed", text.size(), limits.text_bytes)};
  }
  if (text.find('\0') != std::string_view::npos) return Error{ErrorCode::kBadData, "it holds a NUL"};
  if (const size_t wrong = base::utf8_find_invalid(text); wrong != std::string_view::npos) {
    return Error{ErrorCode::kBadData, fmt::format("it is not UTF-8 at byte {}", wrong)};
  }
  if (const uint32_t depth = nesting(text); depth > limits.nesting) {
    return Error{ErrorCode::kBadData,
                 fmt::format("brackets are nested {} deep, at most {} is allowed", depth, limits.nesting)};
  }
  switch (spec.kind) {
    case Kind::kJsonObject:
      return {};
    case Kind::kRegex:
      return judge_repetitions(text, false, limits.repetition);
    case Kind::kGrammar:
      return judge_repetitions(text, true, limits.repetition);
    case Kind::kJsonSchema:
    case Kind::kStructuralTag:
      return judge_schema(text, limits);
  }
  return {};
}

std::string plain_message(std::string_view message) {
  while (!message.empty() && (message.back() == '\n' || message.back() == ' ')) message.remove_suffix(1);
  return base::escape_for_log(message);
}

}  // namespace tally::sample
