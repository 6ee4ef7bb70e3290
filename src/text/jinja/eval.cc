#include "text/jinja/eval.h"

#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace tally::text::jinja {
namespace {

// Trees are at most kTreeDepthMax deep, but macros stack them: this many times the limit of depth.
constexpr uint32_t kLevelsPerDepth = 8;

}  // namespace

Val* Scope::find(NameId name) {
  for (Scope* s = this; s != nullptr; s = s->parent.get())
    for (auto& [own, value] : s->vars)
      if (own == name) return &value;
  return nullptr;
}

void Scope::set(NameId name, Val value) {
  for (auto& [own, old] : vars) {
    if (own != name) continue;
    old = std::move(value);
    return;
  }
  vars.emplace_back(name, std::move(value));
}

Evaluator::Level::Level(Evaluator& evaluator) : owner(evaluator) {
  const uint32_t most = owner.runtime_.limits().depth_max * kLevelsPerDepth;
  if (owner.level_ >= most)
    fail("the template passed its budget of depth: " + std::to_string(most) +
         " levels of statements, expressions and calls");
  ++owner.level_;
  owner.runtime_.meter().step();
}

Evaluator::Evaluator(const Program& program, Runtime& runtime)
    : program_(program), runtime_(runtime), scope_(std::make_shared<Scope>()) {
  for (size_t i = 0; i < program.names.size(); ++i) {
    if (program.names[i] == "loop") loop_name_ = static_cast<NameId>(i), has_loop_ = true;
    if (program.names[i] == "caller") caller_name_ = static_cast<NameId>(i), has_caller_ = true;
  }
}

void Evaluator::set(std::string_view name, Val value) {
  for (size_t i = 0; i < program_.names.size(); ++i)
    if (program_.names[i] == name) scope_->set(static_cast<NameId>(i), std::move(value));
}

Str Evaluator::run() {
  Builder out(runtime_, Builder::Into::kOutput);
  out_ = &out;
  try {
    exec(program_.body);
  } catch (Fault& fault) {
    if (fault.line == 0) fault.line = line_;
    throw;
  }
  return out.text();
}

Evaluator::Flow Evaluator::exec(const Body& body) {
  const Level level(*this);
  for (const Stmt& s : body) {
    runtime_.meter().step();
    line_ = s.line;
    if (const Flow flow = exec(s); flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::exec(const Stmt& s) {
  switch (s.kind) {
    case StmtKind::kText:
      out_->append(s.text, true);
      break;
    case StmtKind::kOutput:
      print_to(*out_, eval(*s.exprs[0]));
      break;
    case StmtKind::kIf:
      return exec_if(s);
    case StmtKind::kFor:
      return exec_for(s);
    case StmtKind::kSet:
      assign(s.target, eval(*s.exprs[0]));
      break;
    case StmtKind::kMacro:
      scope_->set(s.name, make_macro(s, 0));
      break;
    case StmtKind::kCall:
      exec_call(s);
      break;
    case StmtKind::kScope:
      return exec_scope(s);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
    case StmtKind::kSetBlock:
    case StmtKind::kFilter: {
      Val text = capture(s.bodies[0]);
      if (s.exprs[0] != nullptr) {
        const Val* outer = std::exchange(block_text_, &text);
        Val filtered = eval(*s.exprs[0]);
        block_text_ = outer;
        text = std::move(filtered);
      }
      if (s.kind == StmtKind::kFilter)
        print_to(*out_, text);
      else
        assign(s.target, std::move(text));
      break;
    }
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::exec_if(const Stmt& s) {
  for (size_t i = 0; i < s.exprs.size(); ++i)
    if (truth(eval(*s.exprs[i]))) return exec(s.bodies[i]);
  return s.bodies.size() > s.exprs.size() ? exec(s.bodies.back()) : Flow::kNext;
}

// The items of a for statement, those its condition keeps.
Val Evaluator::loop_items(const Stmt& s) {
  ValList all = to_items(runtime_, eval(*s.exprs[0]));
  if (s.exprs[1] == nullptr) return runtime_.list(std::move(all));
  const auto outer = scope_;
  ValList kept;
  for (Val& item : all) {
    scope_ = std::make_shared<Scope>();
    scope_->parent = outer;
    assign(s.target, item);
    if (truth(eval(*s.exprs[1]))) kept.push_back(std::move(item));
  }
  scope_ = outer;
  return runtime_.list(std::move(kept));
}

Evaluator::Flow Evaluator::exec_for(const Stmt& s) {
  const Val items = loop_items(s);
  const ValList& list = items.list().items;
  if (list.empty()) return s.bodies.size() > 1 ? exec(s.bodies[1]) : Flow::kNext;
  auto loop = std::make_shared<LoopObj>();
  runtime_.adopt(*loop, sizeof(LoopObj), depth_of(items) + 1);
  loop->items = items.obj;
  const auto outer = scope_;
  for (size_t i = 0; i < list.size(); ++i) {
    loop->index = i;
    scope_ = std::make_shared<Scope>();
    scope_->parent = outer;
    if (has_loop_) {
      Val handle(Kind::kLoop, loop);
      handle.trusted = true;
      scope_->set(loop_name_, std::move(handle));
    }
    assign(s.target, list[i]);
    if (exec(s.bodies[0]) == Flow::kBreak) break;
  }
  scope_ = outer;
  return Flow::kNext;
}

Evaluator::Flow Evaluator::exec_scope(const Stmt& s) {
  auto inner = std::make_shared<Scope>();
  for (size_t i = 0; i < s.params.size(); ++i) inner->set(s.params[i], eval(*s.exprs[i]));
  inner->parent = scope_;
  const auto outer = std::exchange(scope_, std::move(inner));
  const Flow flow = exec(s.bodies[0]);
  scope_ = outer;
  return flow;
}

void Evaluator::assign(const Target& target, Val value) {
  if (!target.attribute.empty()) {
    const Val* ns = scope_->find(target.names[0]);
    if (ns == nullptr || !ns->is(Kind::kNamespace)) fail("cannot assign attribute on non-namespace object");
    NamespaceObj& object = ns->ns();
    if (Val* known = object.find(target.attribute)) {
      *known = std::move(value);
      return;
    }
    object.charge.add(sizeof(Val) + target.attribute.size());
    object.attributes.emplace_back(target.attribute, std::move(value));
    return;
  }
  if (!target.unpacks) return scope_->set(target.names[0], std::move(value));
  require_defined(value);
  ValList items = to_items(runtime_, value);
  if (items.size() != target.names.size())
    fail("cannot unpack " + std::to_string(items.size()) + " values into " +
         std::to_string(target.names.size()) + " names");
  for (size_t i = 0; i < items.size(); ++i) scope_->set(target.names[i], std::move(items[i]));
}

Val Evaluator::capture(const Body& body) {
  Builder text(runtime_);
  Builder* outer_out = std::exchange(out_, &text);
  auto inner = std::make_shared<Scope>();
  inner->parent = scope_;
  const auto outer = std::exchange(scope_, std::move(inner));
  exec(body);
  scope_ = outer;
  out_ = outer_out;
  return text.finish();
}

Val Evaluator::make_macro(const Stmt& s, size_t first_default) {
  auto macro = std::make_shared<MacroObj>();
  runtime_.adopt(*macro, sizeof(MacroObj), 0);
  macro->statement = &s;
  macro->first_default = first_default;
  macro->scope = scope_;
  return Val(Kind::kMacro, std::move(macro));
}

void Evaluator::exec_call(const Stmt& s) {
  const Val caller = make_macro(s, 1);
  print_to(*out_, eval_call(*s.exprs[0], &caller));
}

void Evaluator::bind_parameters(const MacroObj& macro, const Args& args) {
  const Stmt& s = *macro.statement;
  const std::string name = s.kind == StmtKind::kCall ? "caller" : program_.names[static_cast<size_t>(s.name)];
  if (args.values.size() > s.params.size())
    fail("macro '" + name + "' takes not more than " + std::to_string(s.params.size()) + " argument(s)");
  size_t used = args.values.size();
  const size_t defaults = s.exprs.size() - macro.first_default;
  for (size_t i = 0; i < s.params.size(); ++i) {
    const std::string& param = program_.names[static_cast<size_t>(s.params[i])];
    const Val* given = args.find(i, param);
    if (given != nullptr && i >= args.values.size()) ++used;
    const size_t from_end = s.params.size() - i;
    if (given != nullptr) {
      scope_->set(s.params[i], *given);
    } else if (from_end <= defaults) {
      scope_->set(s.params[i], eval(*s.exprs[s.exprs.size() - from_end]));
    } else {
      scope_->set(s.params[i], runtime_.undefined("parameter '" + param + "' was not provided"));
    }
  }
  for (const auto& [keyword, value] : args.named) {
    if (keyword != "caller") continue;
    if (has_caller_) scope_->set(caller_name_, value);
    ++used;
  }
  if (used < args.values.size() + args.named.size())
    fail("macro '" + name + "' takes no such keyword argument");
}

Val Evaluator::call_macro(const MacroObj& macro, const Args& args) {
  const Level level(*this);
  if (calls_ >= runtime_.limits().calls_max)
    fail("the template passed its budget of " + std::to_string(runtime_.limits().calls_max) +
         " nested calls");
  auto defined_in = macro.scope.lock();
  if (defined_in == nullptr) fail("a macro was called after the block that defined it");
  ++calls_;
  auto inner = std::make_shared<Scope>();
  inner->parent = std::move(defined_in);
  const auto outer = std::exchange(scope_, std::move(inner));
  Builder text(runtime_);
  Builder* outer_out = std::exchange(out_, &text);
  bind_parameters(macro, args);
  exec(macro.statement->bodies[0]);
  out_ = outer_out;
  scope_ = outer;
  --calls_;
  return text.finish();
}

}  // namespace tally::text::jinja
