#pragma once
// The parser's place in the tokens, and the names and depth that both halves of the parser share.

#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tally::text::jinja {

class Cursor {
 public:
  explicit Cursor(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& token() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  bool at(Tok kind) const { return token().kind == kind; }
  bool at_op(std::string_view op) const { return at(Tok::kOperator) && token().text == op; }
  bool at_name(std::string_view name) const { return at(Tok::kName) && token().text == name; }

  Token take() {
    const Token taken = token();
    if (taken.kind != Tok::kEnd) ++at_;
    return taken;
  }
  bool skip_op(std::string_view op) {
    if (!at_op(op)) return false;
    take();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!at_name(name)) return false;
    take();
    return true;
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) unexpected("'" + std::string(op) + "'");
  }
  std::string_view expect_name() {
    if (!at(Tok::kName)) unexpected("a name");
    return take().text;
  }

  // Errors: always a Fault, "expected X, got Y".
  [[noreturn]] void unexpected(const std::string& wanted) const;
  [[noreturn]] void fail_here(std::string message) const { fail_at(token(), std::move(message)); }
  [[noreturn]] static void fail_at(const Token& at, std::string message) {
    throw Fault{std::move(message), at.line, false, at.column};
  }

  NameId intern(std::string_view name);
  std::vector<std::string> take_names() { return std::move(names_); }

  // One level of nesting, for as long as it lives.
  class Level {
   public:
    explicit Level(Cursor& cursor) : cursor_(cursor) {
      if (++cursor_.depth_ > kTreeDepthMax) cursor_.too_deep();
    }
    ~Level() { --cursor_.depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Cursor& cursor_;
  };
  [[noreturn]] void too_deep() const;

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
  uint32_t depth_ = 0;
  std::vector<std::string> names_;
  std::unordered_map<std::string, NameId> ids_;
};

// A node at the cursor's line, and one more child of it. Errors: Fault if the tree gets too deep.
ExprPtr make_expr(const Cursor& cursor, ExprKind kind);
void add_child(const Cursor& cursor, Expr& parent, ExprPtr child);

// A name, literal or bracket (parse_primary.cc).
ExprPtr parse_primary(Cursor& cursor);

// Expressions (parse_expr.cc). `conditional`: `a if b else c` is taken too.
ExprPtr parse_expr(Cursor& cursor, bool conditional = true);
// One expression, or a tuple of several.
ExprPtr parse_tuple(Cursor& cursor, bool conditional = true);
// `name(args)|name2` of a filter block; its innermost subject is null.
ExprPtr parse_filter_chain(Cursor& cursor);

}  // namespace tally::text::jinja
