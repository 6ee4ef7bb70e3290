#include "text/jinja/str.h"

#include "base/utf8.h"

#include <utf8proc.h>

#include <algorithm>

namespace tally::text::jinja {
namespace {

struct Char {
  char32_t code = 0;
  size_t length = 1;
};

Char char_at(std::string_view text, size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x80) return {byte, 1};
  const base::Utf8Step step = base::utf8_step(text.substr(at));
  return {step.code_point, step.length};
}

// Start of the character that ends at `end`.
size_t char_before(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && end - at < 4 && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
  return at + char_at(text, at).length == end ? at : end - 1;
}

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

bool is_upper(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LU; }
bool is_lower(char32_t c) { return category(c) == UTF8PROC_CATEGORY_LL; }
bool is_cased(char32_t c) { return is_upper(c) || is_lower(c) || category(c) == UTF8PROC_CATEGORY_LT; }
bool is_alpha(char32_t c) {
  return is_cased(c) || category(c) == UTF8PROC_CATEGORY_LM || category(c) == UTF8PROC_CATEGORY_LO;
}
bool is_digit(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }

constexpr char32_t kSharpS = 0xDF;  // the one common letter whose upper case is two letters

char32_t to_upper(char32_t c) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
}
char32_t to_title(char32_t c) {
  return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c)));
}
char32_t to_lower(char32_t c) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool ends_jinja_word(char32_t c) {
  return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || is_space(c);
}

// One character of a word: `inside` says whether a letter (or, for a capitalized text, anything) came before
// it.
char32_t change(char32_t c, Letters letters, bool inside) {
  switch (letters) {
    case Letters::kUpper:
      return to_upper(c);
    case Letters::kLower:
      return to_lower(c);
    case Letters::kSwapped:
      return is_upper(c) ? to_lower(c) : is_lower(c) ? to_upper(c) : c;
    case Letters::kTitle:
    case Letters::kCapitalized:
      return inside ? to_lower(c) : to_title(c);
    case Letters::kJinjaTitle:
      return inside ? to_lower(c) : to_upper(c);
  }
  return c;
}

bool in_word_after(char32_t c, Letters letters) {
  if (letters == Letters::kTitle) return is_cased(c);
  if (letters == Letters::kJinjaTitle) return !ends_jinja_word(c);
  return true;
}

bool has_char(std::string_view set, std::string_view c) {
  for (size_t i = 0; i < set.size(); i += char_length(set, i))
    if (set.substr(i, char_length(set, i)) == c) return true;
  return false;
}

bool matches(char32_t c, CharClass wanted) {
  switch (wanted) {
    case CharClass::kDigit:
      return is_digit(c);
    case CharClass::kAlpha:
      return is_alpha(c);
    case CharClass::kAlnum:
      return is_alpha(c) || is_digit(c);
    case CharClass::kSpace:
      return is_space(c);
    case CharClass::kUpper:
      return is_upper(c);
    case CharClass::kLower:
      return is_lower(c);
  }
  return false;
}

}  // namespace

void Str::append(std::string_view bytes, bool trusted) {
  if (bytes.empty()) return;
  if (bytes_.empty()) {
    first_trusted_ = trusted;
  } else if ((first_trusted_ ^ ((borders_.size() & 1) != 0)) != trusted) {
    borders_.push_back(bytes_.size());
  }
  bytes_.append(bytes);
}

void Str::append(const Str& other, size_t from, size_t to) {
  other.for_runs(from, to, [this](std::string_view run, bool trusted) { append(run, trusted); });
}

Str Str::slice(size_t from, size_t to) const {
  Str out;
  out.append(*this, from, to);
  return out;
}

size_t char_length(std::string_view text, size_t at) { return char_at(text, at).length; }

size_t count_chars(std::string_view text) {
  size_t n = 0;
  for (size_t i = 0; i < text.size(); i += char_length(text, i)) ++n;
  return n;
}

bool is_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

Piece strip(std::string_view text, Side side, const std::string_view* chars) {
  const auto goes = [&](size_t at, size_t length) {
    return chars != nullptr ? has_char(*chars, text.substr(at, length)) : is_space(char_at(text, at).code);
  };
  Piece rest{0, text.size()};
  while (side != Side::kRight && rest.from < rest.to) {
    const size_t length = char_length(text, rest.from);
    if (!goes(rest.from, length)) break;
    rest.from += length;
  }
  while (side != Side::kLeft && rest.from < rest.to) {
    const size_t at = char_before(text, rest.to);
    if (at < rest.from || !goes(at, rest.to - at)) break;
    rest.to = at;
  }
  return rest;
}

std::vector<Piece> split_by(std::string_view text, std::string_view separator, long splits_max,
                            bool from_right) {
  std::vector<Piece> pieces;
  if (from_right) {
    size_t to = text.size();
    while (splits_max < 0 || static_cast<long>(pieces.size()) < splits_max) {
      if (to < separator.size()) break;
      const size_t at = text.rfind(separator, to - separator.size());
      if (at == std::string_view::npos) break;
      pieces.push_back({at + separator.size(), to});
      to = at;
    }
    pieces.push_back({0, to});
    std::reverse(pieces.begin(), pieces.end());
    return pieces;
  }
  size_t from = 0;
  while (splits_max < 0 || static_cast<long>(pieces.size()) < splits_max) {
    const size_t at = text.find(separator, from);
    if (at == std::string_view::npos) break;
    pieces.push_back({from, at});
    from = at + separator.size();
  }
  pieces.push_back({from, text.size()});
  return pieces;
}

std::vector<Piece> split_space(std::string_view text, long splits_max) {
  std::vector<Piece> pieces;
  size_t i = 0;
  while (true) {
    while (i < text.size() && is_space(char_at(text, i).code)) i += char_length(text, i);
    if (i == text.size()) return pieces;
    if (splits_max >= 0 && static_cast<long>(pieces.size()) == splits_max) {
      pieces.push_back({i, text.size()});
      return pieces;
    }
    const size_t from = i;
    while (i < text.size() && !is_space(char_at(text, i).code)) i += char_length(text, i);
    pieces.push_back({from, i});
  }
}

std::vector<Piece> split_lines(std::string_view text, bool keep_ends) {
  std::vector<Piece> lines;
  size_t from = 0, i = 0;
  while (i < text.size()) {
    const Char c = char_at(text, i);
    if (!is_line_end(c.code)) {
      i += c.length;
      continue;
    }
    size_t next = i + c.length;
    if (c.code == '\r' && next < text.size() && text[next] == '\n') ++next;
    lines.push_back({from, keep_ends ? next : i});
    from = i = next;
  }
  if (from < text.size()) lines.push_back({from, text.size()});
  return lines;
}

Str change_case(const Str& text, Letters letters) {
  Str out;
  bool inside = false;
  std::string piece;
  text.for_runs(0, text.size(), [&](std::string_view run, bool trusted) {
    piece.clear();
    for (size_t i = 0; i < run.size();) {
      const Char c = char_at(run, i);
      const char32_t changed = c.code == 0xFFFD ? c.code : change(c.code, letters, inside);
      if (c.code == kSharpS && changed != c.code) {
        piece.append(letters == Letters::kTitle || letters == Letters::kCapitalized ? "Ss" : "SS");
      } else if (changed == c.code) {
        piece.append(run.substr(i, c.length));  // invalid bytes stay as they are
      } else {
        base::utf8_append(piece, changed);
      }
      inside = in_word_after(c.code, letters);
      i += c.length;
    }
    out.append(piece, trusted);
  });
  return out;
}

bool all_chars(std::string_view text, CharClass wanted) {
  const bool cased_only = wanted == CharClass::kUpper || wanted == CharClass::kLower;
  bool any = false;
  for (size_t i = 0; i < text.size(); i += char_length(text, i)) {
    const char32_t c = char_at(text, i).code;
    if (cased_only && !is_cased(c)) continue;
    if (!matches(c, wanted)) return false;
    any = true;
  }
  return any;
}

}  // namespace tally::text::jinja
