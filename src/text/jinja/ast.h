#pragma once
// The parsed template: trees of at most kTreeDepthMax levels, so that walking and destroying them needs
// bounded stack.

#include "text/jinja/builtins.h"
#include "text/jinja/value.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tally::text::jinja {

inline constexpr uint32_t kTreeDepthMax = 100;

// Index into Program::names.
enum class NameId : uint32_t {};

enum class Op : uint8_t {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kConcat,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn
};

enum class ExprKind : uint8_t {
  kConstant,  // constant
  kString,    // text
  kName,      // name
  kList,      // args
  kTuple,     // args
  kDict,      // args: key, value, key, value ...
  kAttr,      // args[0], text
  kItem,      // args[0], args[1]
  kSlice,     // args[0], then start, stop, step, each may be null
  kCall,      // args[0], then arguments; the last keywords.size() of them are named
  kFilter,    // args[0] (null in a filter block), then arguments as in a call
  kTest,      // as kFilter; negated
  kNot,       // args[0]
  kNegate,    // args[0]
  kPlus,      // args[0]
  kAnd,       // args[0], args[1]
  kOr,        // args[0], args[1]
  kBinary,    // args[0] ops[0] args[1]
  kCompare,   // args[0] ops[0] args[1] ops[1] args[2] ...
  kCondition  // args[0] if args[1] else args[2], which may be null
};

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  bool negated = false;
  uint32_t line = 0;
  uint32_t depth = 1;  // levels of this tree
  NameId name{};
  Val constant;  // a scalar
  std::string text;
  std::vector<ExprPtr> args;
  std::vector<std::string> keywords;
  std::vector<Op> ops;
  FilterFn filter = nullptr;
  TestFn test = nullptr;
};

// What a set or for statement assigns to: a name, several names (unpacking), or an attribute of a namespace.
struct Target {
  std::vector<NameId> names;
  bool unpacks = false;
  std::string attribute;  // of names[0], if not empty
};

struct Stmt;
using Body = std::vector<Stmt>;

enum class StmtKind : uint8_t {
  kText,      // text
  kOutput,    // exprs[0]
  kIf,        // a condition a body; one more body is the else
  kFor,       // target in exprs[0] if exprs[1] (may be null); bodies[0]; bodies[1] if nothing was there
  kSet,       // target = exprs[0]
  kSetBlock,  // target = bodies[0], through filter exprs[0] (may be null)
  kMacro,     // params, exprs = defaults of the last ones; bodies[0]
  kFilter,    // bodies[0] through filter exprs[0]
  kCall,      // call exprs[0] with caller = a macro of params and bodies[0]; defaults are exprs[1..]
  kScope,     // names of params = exprs; bodies[0]
  kBreak,
  kContinue
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  uint32_t line = 0;
  std::string text;
  Target target;
  NameId name{};  // of a macro
  std::vector<NameId> params;
  std::vector<ExprPtr> exprs;
  std::vector<Body> bodies;
};

struct Program {
  std::vector<std::string> names;  // each name once
  Body body;
};

}  // namespace tally::text::jinja
