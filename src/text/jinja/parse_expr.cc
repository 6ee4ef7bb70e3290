// Expressions, one function a level of precedence, as Jinja's grammar has them (lowest first):
// condition, or, and, not, comparison, + -, ~, * / // %, **, unary, postfix, filter and test.

#include "base/utf8.h"
#include "text/jinja/cursor.h"

#include <array>
#include <span>

namespace tally::text::jinja {
namespace {

ExprPtr parse_or(Cursor& c);
ExprPtr parse_unary(Cursor& c, bool with_filters);
ExprPtr parse_filters(Cursor& c, ExprPtr subject, bool pipes_only);

ExprPtr make(const Cursor& c, ExprKind kind, ExprPtr first, ExprPtr second = nullptr) {
  auto e = make_expr(c, kind);
  add_child(c, *e, std::move(first));
  if (second != nullptr) add_child(c, *e, std::move(second));
  return e;
}

struct Spelling {
  std::string_view text;
  Op op;
};

constexpr std::array<Spelling, 8> kArithmetic = {{{"+", Op::kAdd},
                                                  {"-", Op::kSub},
                                                  {"~", Op::kConcat},
                                                  {"*", Op::kMul},
                                                  {"/", Op::kDiv},
                                                  {"//", Op::kFloorDiv},
                                                  {"%", Op::kMod},
                                                  {"**", Op::kPow}}};
constexpr std::array<Spelling, 6> kComparison = {
    {{"==", Op::kEq}, {"!=", Op::kNe}, {"<", Op::kLt}, {"<=", Op::kLe}, {">", Op::kGt}, {">=", Op::kGe}}};

int arithmetic_level(Op op) {
  switch (op) {
    case Op::kAdd:
    case Op::kSub:
      return 0;
    case Op::kConcat:
      return 1;
    case Op::kMul:
    case Op::kDiv:
    case Op::kFloorDiv:
    case Op::kMod:
      return 2;
    default:
      return 3;
  }
}

const Spelling* spelled(const Cursor& c, std::span<const Spelling> list) {
  if (!c.at(Tok::kOperator)) return nullptr;
  for (const Spelling& s : list)
    if (s.text == c.token().text) return &s;
  return nullptr;
}

// All four arithmetic levels; every one groups from the left.
ExprPtr parse_arithmetic(Cursor& c, int level) {
  if (level == 4) return parse_unary(c, true);
  ExprPtr left = parse_arithmetic(c, level + 1);
  while (true) {
    const Spelling* s = spelled(c, kArithmetic);
    if (s == nullptr || arithmetic_level(s->op) != level) return left;
    c.take();
    ExprPtr right = parse_arithmetic(c, level + 1);
    left = make(c, ExprKind::kBinary, std::move(left), std::move(right));
    left->ops.push_back(s->op);
  }
}

ExprPtr parse_comparison(Cursor& c) {
  ExprPtr first = parse_arithmetic(c, 0);
  ExprPtr chain;
  while (true) {
    Op op{};
    if (const Spelling* s = spelled(c, kComparison)) {
      op = s->op;
      c.take();
    } else if (c.skip_name("in")) {
      op = Op::kIn;
    } else if (c.at_name("not") && c.ahead().kind == Tok::kName && c.ahead().text == "in") {
      c.take();
      c.take();
      op = Op::kNotIn;
    } else {
      return chain != nullptr ? std::move(chain) : std::move(first);
    }
    if (chain == nullptr) chain = make(c, ExprKind::kCompare, std::move(first));
    chain->ops.push_back(op);
    add_child(c, *chain, parse_arithmetic(c, 0));
  }
}

ExprPtr parse_not(Cursor& c) {
  if (!c.at_name("not")) return parse_comparison(c);
  const Cursor::Level level(c);
  c.take();
  return make(c, ExprKind::kNot, parse_not(c));
}

ExprPtr parse_and(Cursor& c) {
  ExprPtr left = parse_not(c);
  while (c.skip_name("and")) {
    ExprPtr right = parse_not(c);
    left = make(c, ExprKind::kAnd, std::move(left), std::move(right));
  }
  return left;
}

ExprPtr parse_or(Cursor& c) {
  ExprPtr left = parse_and(c);
  while (c.skip_name("or")) {
    ExprPtr right = parse_and(c);
    left = make(c, ExprKind::kOr, std::move(left), std::move(right));
  }
  return left;
}

// `(a, b, name=c)` into a call, filter or test.
void parse_arguments(Cursor& c, Expr& call) {
  c.expect_op("(");
  bool first = true;
  while (!c.skip_op(")")) {
    if (!first) c.expect_op(",");
    first = false;
    if (c.skip_op(")")) break;
    if (c.at_op("*") || c.at_op("**")) c.fail_here("unpacking of arguments is not supported");
    if (c.at(Tok::kName) && c.ahead().kind == Tok::kOperator && c.ahead().text == "=") {
      call.keywords.emplace_back(c.take().text);
      c.take();
    } else if (!call.keywords.empty()) {
      c.fail_here("a positional argument follows a named one");
    }
    add_child(c, call, parse_expr(c));
  }
}

ExprPtr parse_subscript(Cursor& c, ExprPtr subject) {
  c.expect_op("[");
  const auto part = [&]() -> ExprPtr { return c.at_op(":") || c.at_op("]") ? nullptr : parse_expr(c); };
  ExprPtr start = part();
  if (c.skip_op("]")) {
    if (start == nullptr) c.unexpected("an index");
    return make(c, ExprKind::kItem, std::move(subject), std::move(start));
  }
  auto e = make(c, ExprKind::kSlice, std::move(subject));
  c.expect_op(":");
  add_child(c, *e, std::move(start));
  add_child(c, *e, part());
  add_child(c, *e, c.skip_op(":") ? part() : nullptr);
  c.expect_op("]");
  return e;
}

ExprPtr parse_postfix(Cursor& c, ExprPtr subject) {
  while (true) {
    if (c.skip_op(".")) {
      if (c.at(Tok::kInteger)) {
        subject = make(c, ExprKind::kItem, std::move(subject), parse_primary(c));
      } else {
        subject = make(c, ExprKind::kAttr, std::move(subject));
        subject->text = c.expect_name();
      }
    } else if (c.at_op("[")) {
      subject = parse_subscript(c, std::move(subject));
    } else if (c.at_op("(")) {
      subject = make(c, ExprKind::kCall, std::move(subject));
      parse_arguments(c, *subject);
    } else {
      return subject;
    }
  }
}

ExprPtr parse_unary(Cursor& c, bool with_filters) {
  ExprPtr e;
  if (c.at_op("-") || c.at_op("+")) {
    const Cursor::Level level(c);
    const bool minus = c.take().text == "-";
    ExprPtr inner = parse_unary(c, false);
    e = make(c, minus ? ExprKind::kNegate : ExprKind::kPlus, std::move(inner));
  } else {
    e = parse_postfix(c, parse_primary(c));
  }
  return with_filters ? parse_filters(c, std::move(e), false) : std::move(e);
}

std::string dotted_name(Cursor& c) {
  std::string name(c.expect_name());
  while (c.skip_op(".")) name.append(".").append(c.expect_name());
  return name;
}

ExprPtr parse_filter(Cursor& c, ExprPtr subject) {
  auto e = make_expr(c, ExprKind::kFilter);
  add_child(c, *e, std::move(subject));
  const Token name = c.token();
  e->text = dotted_name(c);
  e->filter = find_filter(e->text);
  if (e->filter == nullptr)
    Cursor::fail_at(name, "filter '" + base::escape_for_log(e->text, 64) + "' is not supported");
  if (c.at_op("(")) parse_arguments(c, *e);
  return e;
}

// A test's one argument may follow without parentheses: `x is divisibleby 3`.
bool bare_argument_follows(const Cursor& c) {
  if (c.at(Tok::kString) || c.at(Tok::kInteger) || c.at(Tok::kFloat)) return true;
  if (c.at_op("[") || c.at_op("{")) return true;
  constexpr std::array<std::string_view, 8> kNotArguments = {"else", "or", "and", "if",
                                                             "is",   "in", "not", "recursive"};
  if (!c.at(Tok::kName)) return false;
  for (const std::string_view word : kNotArguments)
    if (c.token().text == word) return false;
  return true;
}

ExprPtr parse_test(Cursor& c, ExprPtr subject) {
  auto e = make(c, ExprKind::kTest, std::move(subject));
  e->negated = c.skip_name("not");
  const Token name = c.token();
  e->text = dotted_name(c);
  e->test = find_test(e->text);
  if (e->test == nullptr)
    Cursor::fail_at(name, "test '" + base::escape_for_log(e->text, 64) + "' is not supported");
  if (c.at_op("(")) {
    parse_arguments(c, *e);
  } else if (bare_argument_follows(c)) {
    add_child(c, *e, parse_postfix(c, parse_primary(c)));
  }
  return e;
}

ExprPtr parse_filters(Cursor& c, ExprPtr subject, bool pipes_only) {
  while (true) {
    if (c.skip_op("|")) {
      subject = parse_filter(c, std::move(subject));
    } else if (pipes_only) {
      return subject;
    } else if (c.skip_name("is")) {
      subject = parse_test(c, std::move(subject));
    } else if (c.at_op("(")) {
      subject = make(c, ExprKind::kCall, std::move(subject));
      parse_arguments(c, *subject);
    } else {
      return subject;
    }
  }
}

}  // namespace

ExprPtr parse_expr(Cursor& c, bool conditional) {
  const Cursor::Level level(c);
  ExprPtr value = parse_or(c);
  while (conditional && c.skip_name("if")) {
    auto e = make(c, ExprKind::kCondition, std::move(value));
    add_child(c, *e, parse_or(c));
    add_child(c, *e, c.skip_name("else") ? parse_expr(c) : nullptr);
    value = std::move(e);
  }
  return value;
}

ExprPtr parse_tuple(Cursor& c, bool conditional) {
  ExprPtr first = parse_expr(c, conditional);
  if (!c.at_op(",")) return first;
  auto e = make(c, ExprKind::kTuple, std::move(first));
  while (c.skip_op(",")) {
    const bool ends = c.at(Tok::kBlockEnd) || c.at(Tok::kOutputEnd) || c.at_op(")") || c.at_name("if");
    if (ends) break;
    add_child(c, *e, parse_expr(c, conditional));
  }
  return e;
}

ExprPtr parse_filter_chain(Cursor& c) { return parse_filters(c, parse_filter(c, nullptr), true); }

}  // namespace tally::text::jinja
