// Tests: `x is name(args)`.

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"

#include <array>

namespace tally::text::jinja {
namespace {

const Val& argument(const Args& args) {
  if (args.values.empty()) fail("a test lacks its argument");
  return args.values[0];
}

template <Op op>
bool compared(Runtime& runtime, const Val& v, const Args& args) {
  return compares(runtime, op, v, argument(args));
}

bool is_iterable(const Val& v) {
  return v.is(Kind::kString) || v.is(Kind::kList) || v.is(Kind::kDict) || v.is(Kind::kLoop) ||
         v.is(Kind::kUndefined);
}

bool divisible(Runtime& runtime, const Val& v, const Args& args) {
  return !truth(arithmetic(runtime, Op::kMod, v, argument(args)));
}

template <int64_t remainder>
bool parity(Runtime& runtime, const Val& v, const Args&) {
  return equals(runtime.meter(), arithmetic(runtime, Op::kMod, v, Val::integer(2)), Val::integer(remainder));
}

bool same_as(Runtime& runtime, const Val& v, const Args& args) {
  const Val& other = argument(args);
  return v.kind == other.kind &&
         (v.obj != nullptr && !v.is(Kind::kString) ? v.obj == other.obj : equals(runtime.meter(), v, other));
}

bool is_in(Runtime& runtime, const Val& v, const Args& args) { return contains(runtime, argument(args), v); }

struct Test {
  std::string_view name;
  TestFn call;
};

constexpr std::array kTests = {
    Test{"defined", [](Runtime&, const Val& v, const Args&) { return !v.is(Kind::kUndefined); }},
    Test{"undefined", [](Runtime&, const Val& v, const Args&) { return v.is(Kind::kUndefined); }},
    Test{"none", [](Runtime&, const Val& v, const Args&) { return v.is(Kind::kNone); }},
    Test{"boolean", [](Runtime&, const Val& v, const Args&) { return v.is(Kind::kBool); }},
    Test{"true", [](Runtime&, const Val& v, const Args&) { return v.is(Kind::kBool) && v.b; }},
    Test{"false", [](Runtime&, const Val& v, const Args&) { return v.is(Kind::kBool) && !v.b; }},
    Test{"integer", [](Runtime&, const Val& v, const Args&) { return v.is(Kind::kInt); }},
    Test{"float", [](Runtime&, const Val& v, const Args&) { return v.is(Kind::kFloat); }},
    Test{"number", [](Runtime&, const Val& v, const Args&) { return v.is_number(); }},
    Test{"string", [](Runtime&, const Val& v, const Args&) { return v.is(Kind::kString); }},
    Test{"mapping", [](Runtime&, const Val& v, const Args&) { return v.is(Kind::kDict); }},
    Test{"iterable", [](Runtime&, const Val& v, const Args&) { return is_iterable(v); }},
    Test{"sequence",
         [](Runtime&, const Val& v, const Args&) { return is_iterable(v) && !v.is(Kind::kLoop); }},
    Test{"callable",
         [](Runtime&, const Val& v, const Args&) {
           return v.is(Kind::kMacro) || v.is(Kind::kFunction) || v.is(Kind::kMethod);
         }},
    Test{"lower",
         [](Runtime&, const Val& v, const Args&) {
           return v.is(Kind::kString) && all_chars(v.str().bytes(), CharClass::kLower);
         }},
    Test{"upper",
         [](Runtime&, const Val& v, const Args&) {
           return v.is(Kind::kString) && all_chars(v.str().bytes(), CharClass::kUpper);
         }},
    Test{"even", parity<0>},
    Test{"odd", parity<1>},
    Test{"divisibleby", divisible},
    Test{"sameas", same_as},
    Test{"in", is_in},
    Test{"eq", compared<Op::kEq>},
    Test{"equalto", compared<Op::kEq>},
    Test{"==", compared<Op::kEq>},
    Test{"ne", compared<Op::kNe>},
    Test{"!=", compared<Op::kNe>},
    Test{"lt", compared<Op::kLt>},
    Test{"lessthan", compared<Op::kLt>},
    Test{"<", compared<Op::kLt>},
    Test{"le", compared<Op::kLe>},
    Test{"<=", compared<Op::kLe>},
    Test{"gt", compared<Op::kGt>},
    Test{"greaterthan", compared<Op::kGt>},
    Test{">", compared<Op::kGt>},
    Test{"ge", compared<Op::kGe>},
    Test{">=", compared<Op::kGe>},
};

}  // namespace

TestFn find_test(std::string_view name) {
  for (const Test& test : kTests)
    if (test.name == name) return test.call;
  return nullptr;
}

}  // namespace tally::text::jinja
