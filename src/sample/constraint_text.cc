#include "sample/constraint_text.h"

#include "base/ascii.h"
#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <span>
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

// The number that stands at `at`, saturated; moves behind it. Nothing: none stands there.
std::optional<uint64_t> read_number(std::string_view text, size_t& at) {
  constexpr uint64_t kMost = uint64_t{1} << 40;
  if (at >= text.size() || !is_digit(text[at])) return std::nullopt;
  uint64_t value = 0;
  for (; at < text.size() && is_digit(text[at]); ++at)
    value = std::min(kMost, value * 10 + static_cast<uint64_t>(text[at] - '0'));
  return value;
}

// A piece of a spec that is read on its own, by what it is.
struct Part {
  enum class Kind : uint8_t {
    kRegex,
    kPattern,  // a regex in a schema
    kGrammar,
    kLark,   // a grammar in another form
    kBound,  // of a schema: `text` is its name
  };
  Kind kind = Kind::kRegex;
  std::string text;
  uint64_t bound = 0;
};

// The code unit of an escape \uXXXX; `at`: the u, moves to its last digit. Nothing: it is none.
std::optional<uint32_t> read_code_unit(std::string_view text, size_t& at) {
  constexpr size_t kDigits = 4;
  uint32_t unit = 0;
  if (text.size() - at <= kDigits) return std::nullopt;
  const char* begin = text.data() + at + 1;
  if (std::from_chars(begin, begin + kDigits, unit, 16).ptr != begin + kDigits) return std::nullopt;
  at += kDigits;
  return unit;
}

// What an escape stands for; `at`: behind its backslash, moves to its end.
void append_escaped(std::string_view text, size_t& at, std::string& out) {
  constexpr std::string_view kNames = "bfnrt", kMeant = "\b\f\n\r\t";
  if (const size_t named = kNames.find(text[at]); named != std::string_view::npos) {
    out += kMeant[named];
    return;
  }
  const auto unit = text[at] == 'u' ? read_code_unit(text, at) : std::nullopt;
  if (!unit) {
    out += text[at];
    return;
  }
  const auto is_surrogate = [](uint32_t u, uint32_t first) { return u >= first && u < first + 0x400; };
  constexpr uint32_t kHigh = 0xD800, kLow = 0xDC00, kReplacement = 0xFFFD;
  char32_t code_point = *unit;
  if (is_surrogate(*unit, kHigh) || is_surrogate(*unit, kLow)) {
    size_t next = at + 2;
    const bool follows = is_surrogate(*unit, kHigh) && text.substr(at + 1).starts_with("\\u");
    const auto low = follows ? read_code_unit(text, next) : std::nullopt;
    const bool is_pair = low && is_surrogate(*low, kLow);
    code_point = is_pair ? 0x10000 + ((*unit - kHigh) << 10) + (*low - kLow) : kReplacement;
    if (is_pair) at = next;
  }
  base::utf8_append(out, code_point);
}

// A string of a JSON text. `at`: behind the opening quote; moves behind the closing one.
std::string read_string(std::string_view text, size_t& at) {
  std::string out;
  for (; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\' && at + 1 < text.size())
      append_escaped(text, ++at, out);
    else
      out += text[at];
  }
  ++at;
  return out;
}

// What the members of an object are.
enum class Members : uint8_t {
  kPlain,    // of a structural tag, or nothing that is known
  kSchema,   // keywords
  kSchemas,  // schemas by name
  kData,     // values and annotations, whatever they look like
};

// Walks over the JSON of a schema, or of a structural tag and the schemas in it, for its parts and for how
// deep it is. A text that is not well formed is not refused here.
class JsonWalk {
 public:
  // `data_is_schema`: references may lead into values, and make schemas of them.
  JsonWalk(std::string_view text, bool is_schema, bool data_is_schema)
      : text_(text),
        outside_(is_schema ? Members::kSchema : Members::kPlain),
        data_is_schema_(data_is_schema) {}

  void walk() {
    while (at_ < text_.size()) {
      const char c = text_[at_++];
      if (c == '"') read_key_or_value();
      if (c == '{' || c == '[') enter(c == '{');
      if ((c == '}' || c == ']') && !levels_.empty()) levels_.pop_back();
    }
  }
  std::vector<Part> take_parts() { return std::move(parts_); }
  uint32_t nesting() const { return nesting_; }
  bool may_refer_to_data() const { return may_refer_to_data_; }

 private:
  enum class Key : uint8_t {
    kOther,
    kPattern,
    kPatternProperties,
    kSchema,   // or a list of them
    kSchemas,  // by name
    kReference,
    kGrammar,
    kSyntax,
    kJsonSchema
  };
  struct Level {
    uint32_t depth = 0;  // in a schema, within it alone
    Members members = Members::kPlain;
    bool is_object = false, names_patterns = false, is_lark = false;
    Key key = Key::kOther;                 // the last of an object
    std::optional<uint32_t> grammar = {};  // its part
  };

  static Key key_in_schema(std::string_view name) {
    constexpr std::pair<std::string_view, Key> kKeys[] = {
        {"pattern", Key::kPattern},
        {"patternProperties", Key::kPatternProperties},
        {"properties", Key::kSchemas},
        {"$defs", Key::kSchemas},
        {"definitions", Key::kSchemas},
        {"items", Key::kSchema},
        {"prefixItems", Key::kSchema},
        {"additionalProperties", Key::kSchema},
        {"unevaluatedProperties", Key::kSchema},
        {"unevaluatedItems", Key::kSchema},
        {"propertyNames", Key::kSchema},
        {"anyOf", Key::kSchema},
        {"oneOf", Key::kSchema},
        {"allOf", Key::kSchema},
        {"$ref", Key::kReference}};
    for (const auto& [known, key] : kKeys)
      if (name == known) return key;
    return Key::kOther;
  }

  static Key key_in_tag(std::string_view name) {
    if (name == "pattern") return Key::kPattern;
    if (name == "grammar") return Key::kGrammar;
    if (name == "syntax") return Key::kSyntax;
    return name == "json_schema" ? Key::kJsonSchema : Key::kOther;
  }

  // Of what stands under the last key of `outer`.
  Members members_in(const Level& outer) const {
    switch (outer.members) {
      case Members::kPlain:
        return outer.key == Key::kJsonSchema ? Members::kSchema : Members::kPlain;
      case Members::kSchema:
        if (outer.key == Key::kSchemas || outer.key == Key::kPatternProperties) return Members::kSchemas;
        return outer.key == Key::kSchema || !outer.is_object || data_is_schema_ ? Members::kSchema
                                                                                : Members::kData;
      case Members::kSchemas:
        return Members::kSchema;
      case Members::kData:
        break;
    }
    return Members::kData;
  }

  void enter(bool is_object) {
    const Level outer = levels_.empty() ? Level{.members = outside_} : levels_.back();
    Level level{.depth = outer.depth + 1, .members = members_in(outer), .is_object = is_object};
    if (outer.members == Members::kPlain && level.members == Members::kSchema) level.depth = 1;
    level.names_patterns = is_object && outer.key == Key::kPatternProperties;
    nesting_ = std::max(nesting_, level.depth);
    levels_.push_back(level);
  }

  void skip_space() {
    while (at_ < text_.size() && base::is_json_space(text_[at_])) ++at_;
  }

  void read_key_or_value() {
    std::string said = read_string(text_, at_);
    if (levels_.empty() || !levels_.back().is_object) return;
    Level& level = levels_.back();
    skip_space();
    if (at_ >= text_.size() || text_[at_] != ':') return take_value(level, std::move(said));
    ++at_;
    skip_space();
    if (level.members == Members::kPlain) level.key = key_in_tag(said);
    if (level.members == Members::kSchema) {
      level.key = key_in_schema(said);
      take_bound(said);
    }
    if (level.names_patterns) parts_.push_back({Part::Kind::kPattern, std::move(said)});
  }

  void take_bound(const std::string& name) {
    constexpr std::array<std::string_view, 6> kBounds = {"minLength", "maxLength",     "minItems",
                                                         "maxItems",  "minProperties", "maxProperties"};
    if (std::find(kBounds.begin(), kBounds.end(), name) == kBounds.end()) return;
    if (const auto bound = read_number(text_, at_)) parts_.push_back({Part::Kind::kBound, name, *bound});
  }

  // To the schema itself, or to one that has a name.
  static bool is_plain_reference(std::string_view reference) {
    for (const std::string_view names : {"#/$defs/", "#/definitions/"})
      if (reference.starts_with(names))
        return reference.find_first_of("/%", names.size()) == std::string_view::npos;
    return reference == "#";
  }

  void take_value(Level& level, std::string text) {
    const bool is_schema = level.members != Members::kPlain;
    if (level.key == Key::kReference) may_refer_to_data_ = may_refer_to_data_ || !is_plain_reference(text);
    if (level.key == Key::kPattern)
      parts_.push_back({is_schema ? Part::Kind::kPattern : Part::Kind::kRegex, std::move(text)});
    if (is_schema) return;
    if (level.key == Key::kSyntax) level.is_lark = text == "lark";
    if (level.key == Key::kGrammar) {
      level.grammar = static_cast<uint32_t>(parts_.size());
      parts_.push_back({Part::Kind::kGrammar, std::move(text)});
    }
    if (level.grammar) parts_[*level.grammar].kind = level.is_lark ? Part::Kind::kLark : Part::Kind::kGrammar;
  }

  const std::string_view text_;
  const Members outside_;
  const bool data_is_schema_;
  size_t at_ = 0;
  uint32_t nesting_ = 0;
  bool may_refer_to_data_ = false;
  std::vector<Level> levels_;
  std::vector<Part> parts_;
};

Result<void> judge_nesting(uint32_t depth, const ConstraintLimits& limits) {
  if (depth <= limits.nesting) return {};
  return Error{ErrorCode::kBadData,
               fmt::format("brackets are nested {} deep, at most {} is allowed", depth, limits.nesting)};
}

// The largest bound of a repetition, {n}, {n,} or {n,m}, that begins at `at`; 0: it is none.
uint64_t repetition_at(std::string_view text, size_t at) {
  uint64_t most = 0;
  for (++at; at < text.size() && (is_digit(text[at]) || base::is_json_space(text[at]) || text[at] == ',');) {
    const auto bound = read_number(text, at);
    most = std::max(most, bound.value_or(0));
    if (!bound) ++at;
  }
  return most;
}

// Groups and repetitions of a regex or grammar: what is escaped, in a class, in quotes or behind a # is
// neither.
Result<void> judge_expression(const Part& part, uint32_t repetition, const ConstraintLimits& limits) {
  const std::string_view text = part.text;
  const bool is_grammar = part.kind == Part::Kind::kGrammar;
  bool quoted = false, in_class = false;
  uint32_t depth = 0, deepest = 0;
  uint64_t bound = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\\') {
      ++i;
    } else if (quoted) {
      quoted = c != '"';
    } else if (in_class) {
      in_class = c != ']';
    } else if (is_grammar && c == '#') {
      i = std::min(text.find('\n', i), text.size());
    } else if (c == '(') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ')') {
      depth -= depth > 0;
    } else if (c == '{') {
      bound = std::max(bound, repetition_at(text, i));
    } else {
      quoted = is_grammar && c == '"';
      in_class = c == '[';
    }
  }
  TALLY_TRY_VOID(judge_nesting(deepest, limits));
  if (bound <= repetition) return {};
  return Error{ErrorCode::kBadData,
               fmt::format("a repetition has the bound {}, at most {} is allowed", bound, repetition)};
}

Result<void> judge_part(const Part& part, const ConstraintLimits& limits) {
  if (part.kind == Part::Kind::kPattern) return judge_expression(part, limits.pattern_repetition, limits);
  if (part.kind != Part::Kind::kBound) return judge_expression(part, limits.repetition, limits);
  if (part.bound <= limits.repetition) return {};
  return Error{ErrorCode::kBadData,
               fmt::format("{} is {}, at most {} is allowed", part.text, part.bound, limits.repetition)};
}

// The parts of a spec, and how deep the JSON around them is.
std::pair<std::vector<Part>, uint32_t> parts_of(const ConstraintSpec& spec) {
  switch (spec.kind) {
    case Kind::kJsonObject:
      return {};
    case Kind::kRegex:
      return {{{Part::Kind::kRegex, spec.text}}, 0};
    case Kind::kGrammar:
      return {{{Part::Kind::kGrammar, spec.text}}, 0};
    case Kind::kJsonSchema:
    case Kind::kStructuralTag:
      break;
  }
  const bool is_schema = spec.kind == Kind::kJsonSchema;
  JsonWalk json(spec.text, is_schema, false);
  json.walk();
  if (!json.may_refer_to_data()) return {json.take_parts(), json.nesting()};
  JsonWalk all(spec.text, is_schema, true);
  all.walk();
  return {all.take_parts(), all.nesting()};
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
      const auto body = first.find(rule);  // none: nothing is known of it
      const std::span<const std::string_view> begins =
          body == first.end() ? std::span<const std::string_view>{} : body->second;
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
  const auto [parts, depth] = parts_of(spec);
  TALLY_TRY_VOID(judge_nesting(depth, limits));
  for (const Part& part : parts) TALLY_TRY_VOID(judge_part(part, limits));
  return {};
}

std::vector<std::string> grammars_of(const ConstraintSpec& spec) {
  std::vector<std::string> out;
  for (Part& part : parts_of(spec).first)
    if (part.kind == Part::Kind::kGrammar) out.push_back(std::move(part.text));
  return out;
}

std::string plain_message(std::string_view message) {
  while (!message.empty() && (message.back() == '\n' || message.back() == ' ')) message.remove_suffix(1);
  return base::escape_for_log(message);
}

}  // namespace tally::sample
