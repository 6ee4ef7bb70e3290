#pragma once
// Runs a Program. Recursion follows the tree and macro calls; both are counted.

#include "text/jinja/ast.h"
#include "text/jinja/builtins.h"
#include "text/jinja/runtime.h"

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace tally::text::jinja {

// Names of one block; each iteration of a loop and each call has its own.
struct Scope {
  std::vector<std::pair<NameId, Val>> vars;
  std::shared_ptr<Scope> parent;

  Val* find(NameId name);
  void set(NameId name, Val value);
};

struct MacroObj : Obj {
  const Stmt* statement = nullptr;
  size_t first_default = 0;    // index into statement->exprs
  std::weak_ptr<Scope> scope;  // where it was defined: a macro sees that block, and does not keep it
};

class Evaluator {
 public:
  Evaluator(const Program& program, Runtime& runtime);

  // Before run: a variable of the outermost block. A name the template does not use is ignored.
  void set(std::string_view name, Val value);
  // Errors: Fault with the line.
  Str run();

 private:
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  struct Level;

  // Statements (eval.cc).
  Flow exec(const Body& body);
  Flow exec(const Stmt& s);
  Flow exec_if(const Stmt& s);
  Flow exec_for(const Stmt& s);
  Flow exec_scope(const Stmt& s);
  void exec_call(const Stmt& s);
  Val loop_items(const Stmt& s);
  void assign(const Target& target, Val value);
  // Output of `body` as a string, in a block of its own.
  Val capture(const Body& body);
  Val make_macro(const Stmt& s, size_t first_default);
  Val call_macro(const MacroObj& macro, const Args& args);
  void bind_parameters(const MacroObj& macro, const Args& args);

  // Expressions (eval_expr.cc).
  Val eval(const Expr& e);
  Val eval_dispatch(const Expr& e);
  Val eval_name(const Expr& e);
  Val eval_items(const Expr& e);
  Val eval_dict(const Expr& e);
  Val eval_slice(const Expr& e);
  Val eval_call(const Expr& e, const Val* caller = nullptr);
  Val eval_filter(const Expr& e);
  bool eval_test(const Expr& e);
  bool eval_comparison(const Expr& e);
  Val eval_condition(const Expr& e);
  Args eval_args(const Expr& e);
  Val call(const Val& callee, const Args& args);

  const Program& program_;
  Runtime& runtime_;
  std::shared_ptr<Scope> scope_;
  Builder* out_ = nullptr;
  const Val* block_text_ = nullptr;  // subject of the filter block that is running
  uint32_t level_ = 0;
  uint32_t calls_ = 0;
  uint32_t line_ = 0;
  NameId loop_name_{};
  NameId caller_name_{};
  bool has_loop_ = false, has_caller_ = false;
};

// A level of recursion, for as long as it lives.
struct Evaluator::Level {
  explicit Level(Evaluator& evaluator);
  ~Level() { --owner.level_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  Evaluator& owner;
};

}  // namespace tally::text::jinja
