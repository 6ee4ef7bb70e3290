#include "text/jinja/lexer.h"

#include "base/utf8.h"
#include "text/jinja/value.h"

#include <array>

namespace tally::text::jinja {
namespace {

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_start(char c) {
  return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         static_cast<unsigned char>(c) >= 0x80;
}
bool is_name_part(char c) { return is_name_start(c) || is_digit(c); }

// Longest first.
constexpr std::array<std::string_view, 27> kOperators = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                         "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                         ">",  "<",  "=",  ".",  ":",  "|",  ",", ";", "!"};

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) text();
    push(Tok::kEnd, {});
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail_here(std::string message) const {
    throw Fault{std::move(message), line_, false, column_};
  }

  void push(Tok kind, std::string_view text) {
    if (kind != Tok::kText || !text.empty()) tokens_.push_back({kind, line_, column_, text});
  }

  std::string_view rest() const { return source_.substr(at_); }
  bool next_is(std::string_view what) const { return rest().substr(0, what.size()) == what; }

  // Moves on to `to`, counting lines and the characters of the line.
  void move_to(size_t to) {
    for (; at_ < to; ++at_) {
      const char c = source_[at_];
      line_ += c == '\n' ? 1u : 0u;
      column_ = c == '\n' ? 1 : column_ + ((c & 0xC0) != 0x80 ? 1u : 0u);
    }
    line_starts_ = at_ == 0 || source_[at_ - 1] == '\n';
  }

  void skip_blanks() {
    size_t to = at_;
    while (to < source_.size() && is_blank(source_[to])) ++to;
    move_to(to);
  }

  // Offset of the next `{{`, `{%` or `{#`, or npos.
  size_t find_tag() const {
    for (size_t i = at_; (i = source_.find('{', i)) != std::string_view::npos; ++i) {
      const char next = i + 1 < source_.size() ? source_[i + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return i;
    }
    return std::string_view::npos;
  }

  // Text before a tag, cut as the tag's sign says.
  std::string_view cut_before(std::string_view text, char sign, bool output) const {
    if (sign == '-') {
      const Piece rest = strip(text, Side::kRight, nullptr);
      return text.substr(0, rest.to);
    }
    if (output || sign == '+') return text;
    const size_t newline = text.rfind('\n');
    const size_t from = newline == std::string_view::npos ? 0 : newline + 1;
    if (from == 0 && !line_starts_) return text;
    for (size_t i = from; i < text.size(); ++i)
      if (!is_blank(text[i])) return text;
    return text.substr(0, from);
  }

  void text() {
    const size_t tag = find_tag();
    if (tag == std::string_view::npos) {
      push(Tok::kText, rest());
      move_to(source_.size());
      return;
    }
    const char kind = source_[tag + 1];
    const char after = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const char sign = after == '-' || (after == '+' && kind != '{') ? after : '\0';
    push(Tok::kText, cut_before(source_.substr(at_, tag - at_), sign, kind == '{'));
    move_to(tag + 2 + (sign != '\0' ? 1 : 0));
    if (kind == '#') return comment();
    if (kind == '%' && raw()) return;
    push(kind == '{' ? Tok::kOutputBegin : Tok::kBlockBegin, source_.substr(tag, 2));
    expression(kind == '{');
  }

  // Past the end of a tag: a minus eats white space, else one newline goes (blocks and comments only).
  void end_tag(char sign, size_t length, bool trims) {
    move_to(at_ + length);
    if (sign == '-') {
      skip_blanks();
    } else if (trims && sign != '+' && at_ < source_.size() && source_[at_] == '\n') {
      move_to(at_ + 1);
    }
  }

  void comment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string_view::npos) fail_here("a comment has no end");
    const char before = end > at_ ? source_[end - 1] : '\0';
    move_to(end);
    end_tag(before == '-' || before == '+' ? before : '\0', 2, true);
  }

  // Offset behind `word` if the tag at `from` (after its sign) holds just that word, with the sign of its
  // end.
  size_t word_tag(size_t from, std::string_view word, char& sign) const {
    size_t i = from;
    while (i < source_.size() && is_blank(source_[i])) ++i;
    if (source_.substr(i, word.size()) != word) return std::string_view::npos;
    i += word.size();
    while (i < source_.size() && is_blank(source_[i])) ++i;
    sign = '\0';
    if (i < source_.size() && (source_[i] == '-' || source_[i] == '+')) sign = source_[i++];
    return source_.substr(i, 2) == "%}" ? i : std::string_view::npos;
  }

  bool raw() {
    char sign = '\0';
    const size_t end = word_tag(at_, "raw", sign);
    if (end == std::string_view::npos || sign == '+') return false;
    move_to(end);
    end_tag(sign, 2, false);
    for (size_t i = at_; (i = source_.find("{%", i)) != std::string_view::npos; ++i) {
      const char first = i + 2 < source_.size() ? source_[i + 2] : '\0';
      const char open = first == '-' || first == '+' ? first : '\0';
      const size_t close = word_tag(i + (open != '\0' ? 3 : 2), "endraw", sign);
      if (close == std::string_view::npos) continue;
      push(Tok::kText, cut_before(source_.substr(at_, i - at_), open, false));
      move_to(close);
      end_tag(sign, 2, true);
      return true;
    }
    fail_here("raw has no endraw");
  }

  // True if the tag ends here; brackets must be closed first.
  bool tag_end(bool output) {
    if (!open_.empty()) return false;
    const std::string_view close = output ? "}}" : "%}";
    const char sign = at_ < source_.size() && (source_[at_] == '-' || (source_[at_] == '+' && !output))
                          ? source_[at_]
                          : '\0';
    if (rest().substr(sign != '\0' ? 1 : 0, 2) != close) return false;
    push(output ? Tok::kOutputEnd : Tok::kBlockEnd, close);
    end_tag(sign, sign != '\0' ? 3 : 2, !output);
    return true;
  }

  void expression(bool output) {
    while (true) {
      skip_blanks();
      if (at_ == source_.size()) fail_here(output ? "{{ has no }}" : "{% has no %}");
      if (tag_end(output)) return;
      const char c = source_[at_];
      if (is_name_start(c)) {
        size_t to = at_;
        while (to < source_.size() && is_name_part(source_[to])) ++to;
        take(Tok::kName, to);
      } else if (is_digit(c)) {
        number();
      } else if (c == '\'' || c == '"') {
        quoted(c);
      } else {
        operation();
      }
    }
  }

  void take(Tok kind, size_t to) {
    push(kind, source_.substr(at_, to - at_));
    move_to(to);
  }

  void number() {
    size_t to = at_;
    const auto digits = [&] {
      while (to < source_.size() && (is_digit(source_[to]) || source_[to] == '_')) ++to;
    };
    if (source_[at_] == '0' && at_ + 1 < source_.size() &&
        std::string_view("xXoObB").find(source_[at_ + 1]) != std::string_view::npos) {
      to += 2;
      while (to < source_.size() && is_name_part(source_[to])) ++to;
      return take(Tok::kInteger, to);
    }
    digits();
    bool real = false;
    if (to + 1 < source_.size() && source_[to] == '.' && is_digit(source_[to + 1])) {
      real = true;
      ++to;
      digits();
    }
    if (to < source_.size() && (source_[to] == 'e' || source_[to] == 'E')) {
      size_t exponent = to + 1;
      if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
      if (exponent < source_.size() && is_digit(source_[exponent])) {
        real = true;
        to = exponent;
        digits();
      }
    }
    take(real ? Tok::kFloat : Tok::kInteger, to);
  }

  void quoted(char quote) {
    size_t to = at_ + 1;
    while (to < source_.size() && source_[to] != quote) to += source_[to] == '\\' ? 2 : 1;
    if (to >= source_.size()) fail_here("a string has no end");
    take(Tok::kString, to + 1);
  }

  void operation() {
    for (const std::string_view op : kOperators) {
      if (!next_is(op)) continue;
      if (op == "(" || op == "[" || op == "{") open_.push_back(op[0]);
      if (op == ")" || op == "]" || op == "}") close(op[0]);
      return take(Tok::kOperator, at_ + op.size());
    }
    fail_here("unexpected character '" +
              base::escape_for_log(source_.substr(at_, char_length(source_, at_)), 8) + "'");
  }

  void close(char bracket) {
    const char opening = bracket == ')' ? '(' : bracket == ']' ? '[' : '{';
    if (open_.empty() || open_.back() != opening) fail_here(std::string("unexpected '") + bracket + "'");
    open_.pop_back();
  }

  std::string_view source_;
  size_t at_ = 0;
  uint32_t line_ = 1, column_ = 1;
  bool line_starts_ = true;
  std::string open_;  // brackets of the expression, innermost last
  std::vector<Token> tokens_;
};

}  // namespace

std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace tally::text::jinja
