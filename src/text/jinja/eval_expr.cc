#include "text/jinja/eval.h"
#include "text/jinja/operators.h"

namespace tally::text::jinja {

Val Evaluator::eval(const Expr& e) {
  const Level level(*this);
  return eval_dispatch(e);
}

Val Evaluator::eval_dispatch(const Expr& e) {
  switch (e.kind) {
    case ExprKind::kConstant:
      return e.constant;
    case ExprKind::kString:
      return runtime_.string(e.text, true);
    case ExprKind::kName:
      return eval_name(e);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return eval_items(e);
    case ExprKind::kDict:
      return eval_dict(e);
    case ExprKind::kAttr:
      return get_attribute(runtime_, eval(*e.args[0]), e.text);
    case ExprKind::kItem: {
      const Val subject = eval(*e.args[0]);
      return get_item(runtime_, subject, eval(*e.args[1]));
    }
    case ExprKind::kSlice:
      return eval_slice(e);
    case ExprKind::kCall:
      return eval_call(e);
    case ExprKind::kFilter:
      return eval_filter(e);
    case ExprKind::kTest:
      return Val::boolean(eval_test(e) != e.negated);
    case ExprKind::kNot:
      return Val::boolean(!truth(eval(*e.args[0])));
    case ExprKind::kNegate:
      return negate(eval(*e.args[0]));
    case ExprKind::kPlus: {
      Val v = eval(*e.args[0]);
      if (!v.is(Kind::kFloat)) to_integer(v, "the operand of unary +");
      return v;
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      Val left = eval(*e.args[0]);
      return truth(left) == (e.kind == ExprKind::kAnd) ? eval(*e.args[1]) : left;
    }
    case ExprKind::kBinary: {
      Val left = eval(*e.args[0]);
      const Val right = eval(*e.args[1]);
      return arithmetic(runtime_, e.ops[0], std::move(left), right);
    }
    case ExprKind::kCompare:
      return Val::boolean(eval_comparison(e));
    case ExprKind::kCondition:
      return eval_condition(e);
  }
  return Val();
}

Val Evaluator::eval_name(const Expr& e) {
  if (const Val* value = scope_->find(e.name)) return *value;
  const std::string& name = program_.names[static_cast<size_t>(e.name)];
  if (const int function = find_function(name); function >= 0) {
    Val v(Kind::kFunction);
    v.i = function;
    return v;
  }
  return runtime_.undefined("'" + name + "' is undefined");
}

Val Evaluator::eval_items(const Expr& e) {
  ValList items;
  items.reserve(e.args.size());
  for (const ExprPtr& arg : e.args) items.push_back(eval(*arg));
  return runtime_.list(std::move(items), e.kind == ExprKind::kTuple);
}

Val Evaluator::eval_dict(const Expr& e) {
  Pairs items;
  for (size_t i = 0; i + 1 < e.args.size(); i += 2) {
    Val key = eval(*e.args[i]);
    Val value = eval(*e.args[i + 1]);
    items.emplace_back(std::move(key), std::move(value));
  }
  return runtime_.dict(std::move(items));
}

Val Evaluator::eval_slice(const Expr& e) {
  const Val subject = eval(*e.args[0]);
  const auto part = [&](size_t i) { return e.args[i] != nullptr ? eval(*e.args[i]) : Val::none(); };
  SliceParts parts;
  parts.start = part(1);
  parts.stop = part(2);
  parts.step = part(3);
  return slice(runtime_, subject, parts);
}

// args[0] is what the arguments are for.
Args Evaluator::eval_args(const Expr& e) {
  Args args;
  const size_t named_from = e.args.size() - e.keywords.size();
  for (size_t i = 1; i < e.args.size(); ++i) {
    Val value = eval(*e.args[i]);
    if (i < named_from)
      args.values.push_back(std::move(value));
    else
      args.named.emplace_back(e.keywords[i - named_from], std::move(value));
  }
  return args;
}

Val Evaluator::eval_call(const Expr& e, const Val* caller) {
  const Expr& callee = *e.args[0];
  Val target;
  MethodFn method = nullptr;
  if (callee.kind == ExprKind::kAttr) {  // a method, without making a bound one
    target = eval(*callee.args[0]);
    method = find_method(target.kind, callee.text);
    if (method == nullptr) target = get_attribute(runtime_, target, callee.text);
  } else {
    target = eval(callee);
  }
  require_defined(target);
  Args args = eval_args(e);
  if (caller != nullptr) args.named.emplace_back("caller", *caller);
  return method != nullptr ? method(runtime_, target, args) : call(target, args);
}

Val Evaluator::call(const Val& callee, const Args& args) {
  require_defined(callee);
  if (callee.is(Kind::kFunction)) return call_function(runtime_, callee.i, args);
  if (callee.is(Kind::kMacro)) {
    const std::shared_ptr<Obj> held = callee.obj;
    return call_macro(static_cast<const MacroObj&>(*held), args);
  }
  if (callee.is(Kind::kMethod)) {
    const auto& method = static_cast<const MethodObj&>(*callee.obj);
    return method.function(runtime_, method.subject, args);
  }
  fail("'" + std::string(type_name(callee)) + "' object is not callable");
}

Val Evaluator::eval_filter(const Expr& e) {
  const Val subject = e.args[0] != nullptr ? eval(*e.args[0]) : *block_text_;
  return e.filter(runtime_, subject, eval_args(e));
}

bool Evaluator::eval_test(const Expr& e) {
  const Val subject = eval(*e.args[0]);
  return e.test(runtime_, subject, eval_args(e));
}

bool Evaluator::eval_comparison(const Expr& e) {
  Val left = eval(*e.args[0]);
  for (size_t i = 0; i < e.ops.size(); ++i) {
    Val right = eval(*e.args[i + 1]);
    if (!compares(runtime_, e.ops[i], left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Val Evaluator::eval_condition(const Expr& e) {
  if (truth(eval(*e.args[1]))) return eval(*e.args[0]);
  if (e.args[2] != nullptr) return eval(*e.args[2]);
  return runtime_.undefined("the inline if-expression evaluated to false and no else section was defined");
}

}  // namespace tally::text::jinja
