#include "text/jinja/operators.h"

#include "text/jinja/print.h"
#include "text/jinja/text_ops.h"

#include <algorithm>
#include <cmath>

namespace tally::text::jinja {
namespace {

std::string quoted_type(const Val& v) { return "'" + std::string(type_name(v)) + "'"; }

[[noreturn]] void fail_operands(std::string_view op, const Val& left, const Val& right) {
  fail("unsupported operand type(s) for " + std::string(op) + ": " + quoted_type(left) + " and " +
       quoted_type(right));
}

std::string_view spelling(Op op) {
  switch (op) {
    case Op::kAdd:
      return "+";
    case Op::kSub:
      return "-";
    case Op::kMul:
      return "*";
    case Op::kDiv:
      return "/";
    case Op::kFloorDiv:
      return "//";
    case Op::kMod:
      return "%";
    case Op::kPow:
      return "**";
    default:
      return "~";
  }
}

double real_of(const Val& v) {
  if (v.is(Kind::kFloat)) return v.f;
  return v.is(Kind::kBool) ? (v.b ? 1.0 : 0.0) : static_cast<double>(v.i);
}
int64_t integer_of(const Val& v) { return v.is(Kind::kBool) ? (v.b ? 1 : 0) : v.i; }

Val concat(Runtime& runtime, Val left, const Val& right) {
  runtime.meter().text(right.str().size());
  if (left.obj.use_count() == 1) {  // a value nobody else sees
    auto& own = static_cast<StrObj&>(*left.obj);
    own.charge.add(right.str().memory_bytes() + sizeof(size_t));
    own.text.append(right.str());
    return left;
  }
  Builder out(runtime);
  out.append(left.str());
  out.append(right.str());
  return out.finish();
}

Val concat_lists(Runtime& runtime, const Val& left, const Val& right) {
  const ListObj &a = left.list(), &b = right.list();
  if (a.tuple != b.tuple) fail_operands("+", left, right);
  runtime.heap().ask((a.items.size() + b.items.size()) * sizeof(Val));
  ValList items = a.items;
  items.insert(items.end(), b.items.begin(), b.items.end());
  return runtime.list(std::move(items), a.tuple);
}

constexpr size_t kChunkBytes = 4096;

// n copies of a string or list, asked of the heap before they are made.
Val repeat(Runtime& runtime, const Val& v, int64_t n) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(n, 0));
  const size_t unit = v.is(Kind::kString) ? v.str().memory_bytes() : v.list().items.size() * sizeof(Val);
  if (unit != 0 && count > runtime.limits().live_bytes_max / unit)
    runtime.heap().ask(runtime.limits().live_bytes_max + 1);
  runtime.heap().ask(unit * count);
  const bool empty = v.is(Kind::kString) ? v.str().empty() : v.list().items.empty();
  if (v.is(Kind::kString)) {
    Str chunk = v.str();  // some copies at once
    uint64_t copies = 1, left = empty ? 0 : count;
    while (chunk.size() < kChunkBytes && copies * 2 <= left) {
      chunk.append(Str(chunk));
      copies *= 2;
    }
    Builder out(runtime);
    for (; left >= copies; left -= copies) out.append(chunk);
    for (; left > 0; --left) out.append(v.str());
    return out.finish();
  }
  ValList items;
  for (uint64_t i = 0; i < count && !empty; ++i)
    items.insert(items.end(), v.list().items.begin(), v.list().items.end());
  return runtime.list(std::move(items), v.list().tuple);
}

[[noreturn]] void fail_overflow() { fail("an integer does not fit 64 bits"); }

int64_t floor_div(int64_t a, int64_t b) {
  if (b == 0) fail("integer division or modulo by zero");
  if (a == INT64_MIN && b == -1) fail_overflow();
  const int64_t q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

int64_t floor_mod(int64_t a, int64_t b) {
  if (b == 0) fail("integer division or modulo by zero");
  if (b == -1) return 0;
  const int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

int64_t power(int64_t a, int64_t n) {
  int64_t result = 1;
  while (n > 0) {
    if ((n & 1) != 0 && __builtin_mul_overflow(result, a, &result)) fail_overflow();
    n >>= 1;
    if (n > 0 && __builtin_mul_overflow(a, a, &a)) fail_overflow();
  }
  return result;
}

Val integers(Op op, int64_t a, int64_t b, bool trusted) {
  int64_t r = 0;
  switch (op) {
    case Op::kAdd:
      if (__builtin_add_overflow(a, b, &r)) fail_overflow();
      break;
    case Op::kSub:
      if (__builtin_sub_overflow(a, b, &r)) fail_overflow();
      break;
    case Op::kMul:
      if (__builtin_mul_overflow(a, b, &r)) fail_overflow();
      break;
    case Op::kFloorDiv:
      r = floor_div(a, b);
      break;
    case Op::kMod:
      r = floor_mod(a, b);
      break;
    default:
      r = power(a, b);
      break;
  }
  return Val::integer(r, trusted);
}

Val reals(Op op, double a, double b, bool trusted) {
  const bool divides = op == Op::kDiv || op == Op::kFloorDiv || op == Op::kMod;
  if (divides && b == 0.0) fail("division by zero");
  double r = 0;
  switch (op) {
    case Op::kAdd:
      r = a + b;
      break;
    case Op::kSub:
      r = a - b;
      break;
    case Op::kMul:
      r = a * b;
      break;
    case Op::kDiv:
      r = a / b;
      break;
    case Op::kFloorDiv:
      r = std::floor(a / b);
      break;
    case Op::kMod:
      r = a - b * std::floor(a / b);
      break;
    default:
      r = std::pow(a, b);
      break;
  }
  return Val::real(r, trusted);
}

Val numbers(Op op, const Val& a, const Val& b) {
  const bool trusted = a.trusted && b.trusted;
  const bool real =
      a.is(Kind::kFloat) || b.is(Kind::kFloat) || op == Op::kDiv || (op == Op::kPow && integer_of(b) < 0);
  if (real) return reals(op, real_of(a), real_of(b), trusted);
  return integers(op, integer_of(a), integer_of(b), trusted);
}

bool is_sequence(const Val& v) { return v.is(Kind::kString) || v.is(Kind::kList); }

// Python's slice.indices: [from, to) walked by step.
struct Range {
  int64_t from = 0, to = 0, step = 1;
};

Range slice_range(const SliceParts& parts, int64_t length) {
  const auto given = [](const Val& v) { return !v.is(Kind::kNone); };
  Range r;
  if (given(parts.step)) r.step = to_integer(parts.step, "a slice step");
  if (r.step == 0) fail("slice step cannot be zero");
  const int64_t low = r.step > 0 ? 0 : -1, high = r.step > 0 ? length : length - 1;
  const auto place = [&](const Val& v, int64_t otherwise) {
    if (!given(v)) return otherwise;
    int64_t at = to_integer(v, "a slice index");
    if (at < 0) at += length;  // cannot overflow: length >= 0
    return std::clamp(at, low, std::max(low, high));
  };
  r.from = place(parts.start, r.step > 0 ? low : high);
  r.to = place(parts.stop, r.step > 0 ? high : low);
  return r;
}

template <class F>
void walk(const Range& r, F&& f) {
  for (int64_t i = r.from; r.step > 0 ? i < r.to : i > r.to;) {
    f(static_cast<size_t>(i));
    if (__builtin_add_overflow(i, r.step, &i)) return;
  }
}

std::vector<Piece> characters(Runtime& runtime, const std::string& text) {
  runtime.meter().step(text.size() / 16);
  runtime.heap().ask(text.size() * sizeof(Piece));
  std::vector<Piece> out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const size_t length = char_length(text, i);
    out.push_back({i, i + length});
    i += length;
  }
  return out;
}

// Byte offset of the n-th character, at most the size.
size_t offset_of(std::string_view text, int64_t n) {
  size_t i = 0;
  for (; n > 0 && i < text.size(); --n) i += char_length(text, i);
  return i;
}

}  // namespace

Val arithmetic(Runtime& runtime, Op op, Val left, const Val& right) {
  if (op == Op::kConcat) return concat(runtime, to_string(runtime, left), to_string(runtime, right));
  require_defined(left);
  require_defined(right);
  if (left.is_number() && right.is_number()) return numbers(op, left, right);
  if (op == Op::kAdd) {
    if (left.is(Kind::kString) && right.is(Kind::kString)) return concat(runtime, std::move(left), right);
    if (left.is(Kind::kList) && right.is(Kind::kList)) return concat_lists(runtime, left, right);
    if (is_sequence(left))
      fail("can only concatenate " + std::string(type_name(left)) + " (not \"" +
           std::string(type_name(right)) + "\") to " + std::string(type_name(left)));
  }
  if (op == Op::kMod && left.is(Kind::kString)) {
    const bool several = right.is(Kind::kList) && right.list().tuple;
    return format_text(runtime, left.str(), several ? right.list().items : ValList{right});
  }
  const auto counts = [](const Val& v) { return v.is(Kind::kInt) || v.is(Kind::kBool); };
  if (op == Op::kMul && is_sequence(left) && counts(right)) return repeat(runtime, left, integer_of(right));
  if (op == Op::kMul && is_sequence(right) && counts(left)) return repeat(runtime, right, integer_of(left));
  fail_operands(spelling(op), left, right);
}

bool compares(Runtime& runtime, Op op, const Val& left, const Val& right) {
  switch (op) {
    case Op::kEq:
      return equals(runtime.meter(), left, right);
    case Op::kNe:
      return !equals(runtime.meter(), left, right);
    case Op::kIn:
      return contains(runtime, right, left);
    case Op::kNotIn:
      return !contains(runtime, right, left);
    default:
      break;
  }
  require_defined(left);
  require_defined(right);
  const bool unordered =
      (left.is(Kind::kFloat) && std::isnan(left.f)) || (right.is(Kind::kFloat) && std::isnan(right.f));
  const int order = compare(runtime.meter(), left, right);
  if (unordered) return false;
  switch (op) {
    case Op::kLt:
      return order < 0;
    case Op::kLe:
      return order <= 0;
    case Op::kGt:
      return order > 0;
    default:
      return order >= 0;
  }
}

bool contains(Runtime& runtime, const Val& container, const Val& item) {
  switch (container.kind) {
    case Kind::kUndefined:
      return false;
    case Kind::kString:
      if (!item.is(Kind::kString))
        fail("'in <string>' requires string as left operand, not " + std::string(type_name(item)));
      runtime.meter().search(container.str().size(), item.str().size());
      return container.str().bytes().find(item.str().bytes()) != std::string::npos;
    case Kind::kList:
      for (const Val& own : container.list().items)
        if (equals(runtime.meter(), own, item)) return true;
      return false;
    case Kind::kDict:
      runtime.meter().step(item.is(Kind::kString) ? 1 : 1 + container.dict().items.size() / 8);
      return container.dict().find(item) != nullptr;
    default:
      fail("argument of type " + quoted_type(container) + " is not iterable");
  }
}

Val negate(const Val& v) {
  require_defined(v);
  if (v.is(Kind::kFloat)) return Val::real(-v.f, v.trusted);
  const int64_t n = to_integer(v, "the operand of unary -");
  if (n == INT64_MIN) fail_overflow();
  return Val::integer(-n, v.trusted);
}

Val slice(Runtime& runtime, const Val& subject, const SliceParts& parts) {
  require_defined(subject);
  if (subject.is(Kind::kList)) {
    const ListObj& list = subject.list();
    ValList items;
    walk(slice_range(parts, static_cast<int64_t>(list.items.size())),
         [&](size_t i) { items.push_back(list.items[i]); });
    return runtime.list(std::move(items), list.tuple);
  }
  if (!subject.is(Kind::kString)) fail(quoted_type(subject) + " object is not subscriptable");
  const Str& text = subject.str();
  const Range r = slice_range(parts, length_of(runtime, subject));
  if (r.step == 1) {
    const size_t from = offset_of(text.bytes(), r.from);
    const size_t to =
        r.to > r.from ? from + offset_of(std::string_view(text.bytes()).substr(from), r.to - r.from) : from;
    runtime.meter().text(to);
    return runtime.string(text.slice(from, to));
  }
  const std::vector<Piece> chars = characters(runtime, text.bytes());
  Builder out(runtime);
  walk(r, [&](size_t i) { out.append(text, chars[i].from, chars[i].to); });
  return out.finish();
}

ValList to_items(Runtime& runtime, const Val& v) {
  ValList items;
  switch (v.kind) {
    case Kind::kUndefined:
      return items;
    case Kind::kList:
      runtime.meter().step(v.list().items.size() / 8);
      return v.list().items;
    case Kind::kDict:
      for (const auto& [key, value] : v.dict().items) items.push_back(key);
      return items;
    case Kind::kString:
      for (const Piece& c : characters(runtime, v.str().bytes())) {
        runtime.meter().step();
        items.push_back(runtime.string(v.str().slice(c.from, c.to)));
      }
      return items;
    default:
      fail(quoted_type(v) + " object is not iterable");
  }
}

int64_t length_of(Runtime& runtime, const Val& v) {
  switch (v.kind) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      runtime.meter().text(v.str().size());
      return static_cast<int64_t>(count_chars(v.str().bytes()));
    case Kind::kList:
      return static_cast<int64_t>(v.list().items.size());
    case Kind::kDict:
      return static_cast<int64_t>(v.dict().items.size());
    case Kind::kLoop:
      return static_cast<int64_t>(
          static_cast<const ListObj&>(*static_cast<const LoopObj&>(*v.obj).items).items.size());
    default:
      fail("object of type " + quoted_type(v) + " has no len()");
  }
}

}  // namespace tally::text::jinja
