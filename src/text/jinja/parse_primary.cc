// The leaves of expressions: names, numbers, strings, lists, mappings, and what stands in brackets.

#include "base/utf8.h"
#include "text/jinja/cursor.h"

#include <charconv>

namespace tally::text::jinja {
namespace {

// Value of a hexadecimal digit run, or -1.
int64_t hex_value(std::string_view digits) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  return error == std::errc() && end == digits.data() + digits.size() ? value : -1;
}

// One escape sequence at text[i] (behind the backslash); moves i past it.
void unescape(const Cursor& c, std::string_view text, size_t& i, std::string& out) {
  const char kind = text[i++];
  constexpr std::string_view kPlain = "n\nt\tr\rb\bf\fv\va\a\\\\''\"\"";
  for (size_t k = 0; k + 1 < kPlain.size(); k += 2) {
    if (kPlain[k] != kind) continue;
    out.push_back(kPlain[k + 1]);
    return;
  }
  if (kind == '\n') return;  // the line goes on
  const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
  if (digits != 0) {
    const int64_t code = hex_value(text.substr(i, digits));
    const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
    if (text.size() - i < digits || code <= 0 || code > 0x10FFFF || surrogate)
      c.fail_here("a string holds a bad \\" + std::string(1, kind) + " escape");
    base::utf8_append(out, static_cast<char32_t>(code));
    i += digits;
    return;
  }
  if (kind >= '0' && kind <= '7') {
    uint32_t code = static_cast<uint32_t>(kind - '0');
    for (int k = 0; k < 2 && i < text.size() && text[i] >= '0' && text[i] <= '7'; ++k, ++i)
      code = code * 8 + static_cast<uint32_t>(text[i] - '0');
    if (code == 0) c.fail_here("a string holds a NUL escape");
    base::utf8_append(out, code);
    return;
  }
  out.push_back('\\');  // as Python: an unknown escape stays
  out.push_back(kind);
}

ExprPtr parse_string(Cursor& c) {
  auto e = make_expr(c, ExprKind::kString);
  while (c.at(Tok::kString)) {  // strings side by side are one
    std::string_view text = c.token().text;
    text = text.substr(1, text.size() - 2);
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '\\') {
        e->text.push_back(text[i++]);
        continue;
      }
      ++i;
      unescape(c, text, i, e->text);
    }
    c.take();
  }
  return e;
}

ExprPtr parse_number(Cursor& c) {
  auto e = make_expr(c, ExprKind::kConstant);
  std::string digits;
  for (const char d : c.token().text)
    if (d != '_') digits.push_back(d);
  const char* end = digits.data() + digits.size();
  std::from_chars_result result{};
  if (c.at(Tok::kFloat)) {
    double value = 0;
    result = std::from_chars(digits.data(), end, value);
    e->constant = Val::real(value);
  } else {
    int64_t value = 0;
    const char mark = digits.size() > 2 && digits[0] == '0' ? static_cast<char>(digits[1] | 0x20) : '\0';
    const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    result = std::from_chars(digits.data() + (base == 10 ? 0 : 2), end, value, base);
    e->constant = Val::integer(value);
  }
  if (result.ec != std::errc() || result.ptr != end)
    c.fail_here("not a number that fits: " + base::escape_for_log(c.token().text, 40));
  c.take();
  return e;
}

ExprPtr parse_name(Cursor& c) {
  const std::string_view text = c.token().text;
  auto e = make_expr(c, ExprKind::kConstant);
  if (text == "true" || text == "True") {
    e->constant = Val::boolean(true);
  } else if (text == "false" || text == "False") {
    e->constant = Val::boolean(false);
  } else if (text == "none" || text == "None") {
    e->constant = Val::none();
  } else {
    e->kind = ExprKind::kName;
    e->name = c.intern(text);
  }
  c.take();
  return e;
}

ExprPtr parse_list(Cursor& c) {
  auto e = make_expr(c, ExprKind::kList);
  c.expect_op("[");
  while (!c.skip_op("]")) {
    if (!e->args.empty()) c.expect_op(",");
    if (c.skip_op("]")) break;
    add_child(c, *e, parse_expr(c));
  }
  return e;
}

ExprPtr parse_dict(Cursor& c) {
  auto e = make_expr(c, ExprKind::kDict);
  c.expect_op("{");
  while (!c.skip_op("}")) {
    if (!e->args.empty()) c.expect_op(",");
    if (c.skip_op("}")) break;
    add_child(c, *e, parse_expr(c));
    c.expect_op(":");
    add_child(c, *e, parse_expr(c));
  }
  return e;
}

}  // namespace

ExprPtr make_expr(const Cursor& c, ExprKind kind) {
  auto e = std::make_unique<Expr>();
  e->kind = kind;
  e->line = c.token().line;
  return e;
}

void add_child(const Cursor& c, Expr& parent, ExprPtr child) {
  if (child != nullptr && child->depth >= parent.depth) parent.depth = child->depth + 1;
  if (parent.depth > kTreeDepthMax) c.too_deep();
  parent.args.push_back(std::move(child));
}

ExprPtr parse_primary(Cursor& c) {
  if (c.at(Tok::kName)) return parse_name(c);
  if (c.at(Tok::kString)) return parse_string(c);
  if (c.at(Tok::kInteger) || c.at(Tok::kFloat)) return parse_number(c);
  if (c.at_op("[")) return parse_list(c);
  if (c.at_op("{")) return parse_dict(c);
  if (!c.skip_op("(")) c.unexpected("an expression");
  if (c.at_op(")")) {
    c.take();
    return make_expr(c, ExprKind::kTuple);
  }
  ExprPtr inner = parse_tuple(c);
  c.expect_op(")");
  return inner;
}

}  // namespace tally::text::jinja
