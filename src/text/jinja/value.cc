#include "text/jinja/value.h"

#include "base/check.h"
#include "base/clock.h"

#include <algorithm>
#include <cmath>

namespace tally::text::jinja {
namespace {

double as_real(const Val& v) {
  if (v.is(Kind::kFloat)) return v.f;
  return v.is(Kind::kBool) ? (v.b ? 1.0 : 0.0) : static_cast<double>(v.i);
}

int64_t as_integer(const Val& v) { return v.is(Kind::kBool) ? (v.b ? 1 : 0) : v.i; }

int compare_numbers(const Val& a, const Val& b) {
  if (!a.is(Kind::kFloat) && !b.is(Kind::kFloat)) {
    const int64_t x = as_integer(a), y = as_integer(b);
    return x < y ? -1 : x > y ? 1 : 0;
  }
  const double x = as_real(a), y = as_real(b);
  return x < y ? -1 : x > y ? 1 : 0;
}

bool same_number(const Val& a, const Val& b) {
  const bool unordered = (a.is(Kind::kFloat) && std::isnan(a.f)) || (b.is(Kind::kFloat) && std::isnan(b.f));
  return !unordered && compare_numbers(a, b) == 0;
}

bool equal_lists(Meter& meter, const ListObj& a, const ListObj& b) {
  if (a.tuple != b.tuple || a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i)
    if (!equals(meter, a.items[i], b.items[i])) return false;
  return true;
}

bool equal_dicts(Meter& meter, const DictObj& a, const DictObj& b) {
  if (a.items.size() != b.items.size()) return false;
  for (const auto& [key, value] : a.items) {
    const Val* other = b.find(key);
    if (other == nullptr || !equals(meter, value, *other)) return false;
  }
  return true;
}

constexpr uint64_t kStepsBetweenLooks = 512;

}  // namespace

void fail(std::string message) { throw Fault{std::move(message), 0, false}; }

Meter::Meter(uint64_t steps_max, uint32_t time_max_ms)
    : steps_max_(steps_max),
      look_at_(std::min(kStepsBetweenLooks, steps_max + 1)),
      deadline_us_(base::now_us() + int64_t{time_max_ms} * 1000),
      time_max_ms_(time_max_ms) {}

void Meter::look() {
  if (steps_ > steps_max_) fail("the template passed its budget of " + std::to_string(steps_max_) + " steps");
  if (base::now_us() > deadline_us_)
    fail("the template passed its budget of " + std::to_string(time_max_ms_) + " ms");
  look_at_ = std::min(steps_ + kStepsBetweenLooks, steps_max_ + 1);
}

void Heap::ask(size_t bytes) const {
  if (bytes > bytes_max_ - live_)
    fail("the template passed its budget of " + std::to_string(bytes_max_) + " live bytes");
}

void Heap::take(size_t bytes) {
  ask(bytes);
  live_ += bytes;
}

Val Val::boolean(bool v, bool is_trusted) {
  Val out(Kind::kBool);
  out.b = v;
  out.trusted = is_trusted;
  return out;
}

Val Val::integer(int64_t v, bool is_trusted) {
  Val out(Kind::kInt);
  out.i = v;
  out.trusted = is_trusted;
  return out;
}

Val Val::real(double v, bool is_trusted) {
  Val out(Kind::kFloat);
  out.f = v;
  out.trusted = is_trusted;
  return out;
}

const Str& Val::str() const {
  TALLY_CHECK(kind == Kind::kString, "not a string", static_cast<int>(kind));
  return static_cast<const StrObj*>(obj.get())->text;
}

const ListObj& Val::list() const {
  TALLY_CHECK(kind == Kind::kList, "not a list", static_cast<int>(kind));
  return *static_cast<const ListObj*>(obj.get());
}

const DictObj& Val::dict() const {
  TALLY_CHECK(kind == Kind::kDict, "not a mapping", static_cast<int>(kind));
  return *static_cast<const DictObj*>(obj.get());
}

NamespaceObj& Val::ns() const {
  TALLY_CHECK(kind == Kind::kNamespace, "not a namespace", static_cast<int>(kind));
  return *static_cast<NamespaceObj*>(obj.get());
}

const Val* DictObj::find(std::string_view key) const {
  const auto at = strings.find(key);
  return at == strings.end() ? nullptr : &items[at->second].second;
}

std::optional<size_t> DictObj::index_of(const Val& key) const {
  if (key.is(Kind::kString)) {
    const auto at = strings.find(key.str().bytes());
    return at == strings.end() ? std::nullopt : std::optional(at->second);
  }
  if (strings.size() == items.size()) return std::nullopt;
  for (size_t i = 0; i < items.size(); ++i) {
    const Val& own = items[i].first;
    if (own.is_number() && key.is_number() ? same_number(own, key) : own.is(key.kind) && key.is(Kind::kNone))
      return i;
  }
  return std::nullopt;
}

const Val* DictObj::find(const Val& key) const {
  const auto at = index_of(key);
  return at.has_value() ? &items[*at].second : nullptr;
}

Val* NamespaceObj::find(std::string_view name) {
  for (auto& [own, value] : attributes)
    if (own == name) return &value;
  return nullptr;
}

bool truth(const Val& v) {
  switch (v.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return v.b;
    case Kind::kInt:
      return v.i != 0;
    case Kind::kFloat:
      return v.f != 0.0;
    case Kind::kString:
      return !v.str().empty();
    case Kind::kList:
      return !v.list().items.empty();
    case Kind::kDict:
      return !v.dict().items.empty();
    case Kind::kNamespace:
    case Kind::kMacro:
    case Kind::kLoop:
    case Kind::kMethod:
    case Kind::kFunction:
      return true;
  }
  return false;
}

std::string_view type_name(const Val& v) {
  switch (v.kind) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kList:
      return v.list().tuple ? "tuple" : "list";
    case Kind::kDict:
      return "dict";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kMacro:
      return "Macro";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kMethod:
    case Kind::kFunction:
      return "function";
  }
  return "object";
}

bool all_trusted(const Val& v) { return v.is(Kind::kString) ? v.str().all_trusted() : v.trusted; }

bool equals(Meter& meter, const Val& a, const Val& b) {
  meter.step();
  if (a.is_number() && b.is_number()) return same_number(a, b);
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      meter.text(a.str().size());
      return a.str().bytes() == b.str().bytes();
    case Kind::kList:
      return a.obj == b.obj || equal_lists(meter, a.list(), b.list());
    case Kind::kDict:
      return a.obj == b.obj || equal_dicts(meter, a.dict(), b.dict());
    case Kind::kFunction:
      return a.i == b.i;
    default:
      return a.obj == b.obj;
  }
}

int compare(Meter& meter, const Val& a, const Val& b) {
  meter.step();
  if (a.is_number() && b.is_number()) return compare_numbers(a, b);
  if (a.is(Kind::kString) && b.is(Kind::kString)) {
    meter.text(std::min(a.str().size(), b.str().size()));
    return a.str().bytes().compare(b.str().bytes());
  }
  if (a.is(Kind::kList) && b.is(Kind::kList)) {
    const ValList &x = a.list().items, &y = b.list().items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!equals(meter, x[i], y[i])) return compare(meter, x[i], y[i]);
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  fail("'<' not supported between instances of '" + std::string(type_name(a)) + "' and '" +
       std::string(type_name(b)) + "'");
}

uint32_t depth_of(const Val& v) { return v.obj == nullptr || v.is(Kind::kNamespace) ? 0 : v.obj->depth; }

}  // namespace tally::text::jinja
