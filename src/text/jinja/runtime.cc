#include "text/jinja/runtime.h"

#include "base/check.h"

#include <algorithm>

namespace tally::text::jinja {
namespace {

constexpr size_t kBytesPerStep = 256;
constexpr size_t kObjectBytes = 32;  // reference counts and the allocator's own

bool is_key(const Val& v) { return v.is(Kind::kString) || v.is_number() || v.is(Kind::kNone); }

}  // namespace

Runtime::Runtime(const TemplateLimits& limits, int64_t now_s)
    : limits_(limits),
      now_s_(now_s),
      meter_(limits.steps_max, limits.time_max_ms),
      heap_(limits.live_bytes_max) {}

Runtime::~Runtime() {
  // Breaks every cycle, and no chain of namespaces is destroyed by recursion: all of them are held here.
  for (const auto& ns : namespaces_) ns->attributes.clear();
}

void Runtime::adopt(Obj& obj, size_t bytes, uint32_t depth) {
  if (depth > limits_.depth_max)
    fail("the template passed its budget of depth " + std::to_string(limits_.depth_max) +
         ": values nest too deep");
  obj.depth = depth;
  obj.charge = Charge(heap_, bytes + kObjectBytes);
}

Val Runtime::string(Str text) {
  auto obj = std::make_shared<StrObj>();
  adopt(*obj, sizeof(StrObj) + text.memory_bytes(), 0);
  obj->text = std::move(text);
  return Val(Kind::kString, std::move(obj));
}

Val Runtime::list(ValList items, bool tuple) {
  auto obj = std::make_shared<ListObj>();
  uint32_t depth = 0;
  bool trusted = true;
  for (const Val& item : items) {
    depth = std::max(depth, depth_of(item));
    trusted = trusted && all_trusted(item);
  }
  meter_.step(1 + items.size() / 8);
  adopt(*obj, sizeof(ListObj) + items.size() * sizeof(Val), depth + 1);
  obj->items = std::move(items);
  obj->tuple = tuple;
  Val out(Kind::kList, std::move(obj));
  out.trusted = trusted;
  return out;
}

Val Runtime::dict(Pairs items) {
  auto obj = std::make_shared<DictObj>();
  meter_.step(1 + items.size() / 4);
  constexpr size_t kEntryBytes = sizeof(std::pair<Val, Val>) + 48;  // with its node in the index
  adopt(*obj, sizeof(DictObj) + items.size() * kEntryBytes, 0);
  uint32_t depth = 0;
  bool trusted = true;
  obj->items.reserve(items.size());
  for (auto& [key, value] : items) {
    if (!is_key(key)) fail("unhashable type: '" + std::string(type_name(key)) + "'");
    depth = std::max(depth, depth_of(value));
    trusted = trusted && all_trusted(key) && all_trusted(value);
    if (const auto known = obj->index_of(key)) {
      obj->items[*known].second = std::move(value);
      continue;
    }
    obj->items.emplace_back(std::move(key), std::move(value));
    const Val& own = obj->items.back().first;
    if (own.is(Kind::kString))
      obj->strings.emplace(own.str().bytes(), obj->items.size() - 1);
    else
      meter_.step(obj->items.size() / 8);  // such keys are looked for one by one
  }
  adopt(*obj, sizeof(DictObj) + obj->items.size() * kEntryBytes, depth + 1);
  Val out(Kind::kDict, std::move(obj));
  out.trusted = trusted;
  return out;
}

Val Runtime::make_namespace() {
  auto obj = std::make_shared<NamespaceObj>();
  adopt(*obj, sizeof(NamespaceObj), 0);
  namespaces_.push_back(obj);
  return Val(Kind::kNamespace, std::move(obj));
}

Val Runtime::undefined(std::string why) {
  auto obj = std::make_shared<StrObj>();
  adopt(*obj, sizeof(StrObj) + why.size(), 0);
  obj->text = Str(why, true);
  return Val(Kind::kUndefined, std::move(obj));
}

Val Runtime::from_input(const Value& value, uint32_t depth) {
  if (depth > limits_.depth_max)
    fail("the template passed its budget of depth " + std::to_string(limits_.depth_max) +
         ": its input nests too deep");
  struct Visitor {
    Runtime& runtime;
    uint32_t depth;
    Val operator()(std::nullptr_t) const { return Val::none(); }
    Val operator()(bool v) const { return Val::boolean(v, false); }
    Val operator()(int64_t v) const { return Val::integer(v, false); }
    Val operator()(double v) const { return Val::real(v, false); }
    Val operator()(const std::string& v) const {
      runtime.heap_.ask(v.size());
      return runtime.string(v, false);
    }
    Val operator()(const ValueList& v) const {
      runtime.heap_.ask(v.size() * sizeof(Val));
      ValList items;
      items.reserve(v.size());
      for (const Value& item : v) items.push_back(runtime.from_input(item, depth + 1));
      return runtime.list(std::move(items));
    }
    Val operator()(const ValueObject& v) const {
      runtime.heap_.ask(v.size() * sizeof(std::pair<Val, Val>));
      Pairs items;
      items.reserve(v.size());
      for (const auto& [key, item] : v)
        items.emplace_back(runtime.string(key, false), runtime.from_input(item, depth + 1));
      return runtime.dict(std::move(items));
    }
  };
  return std::visit(Visitor{*this, depth}, value.data);
}

Builder::Builder(Runtime& runtime, Into into)
    : runtime_(runtime),
      is_output_(into == Into::kOutput),
      bytes_max_(runtime.limits().output_bytes_max),
      charge_(runtime.heap(), 0) {}

void Builder::append(std::string_view bytes, bool trusted) {
  unmetered_ += bytes.size();
  if (unmetered_ >= kBytesPerStep) {
    runtime_.meter().step(unmetered_ / kBytesPerStep);
    unmetered_ %= kBytesPerStep;
  }
  if (is_output_ && bytes.size() > bytes_max_ - text_.size())
    fail("the template passed its budget of " + std::to_string(bytes_max_) + " output bytes");
  if (!is_output_) runtime_.heap().ask(bytes.size() + sizeof(size_t));
  const size_t before = text_.memory_bytes();
  text_.append(bytes, trusted);
  if (!is_output_) charge_.add(text_.memory_bytes() - before);
}

void Builder::append(const Str& text, size_t from, size_t to) {
  text.for_runs(from, to, [this](std::string_view run, bool trusted) { append(run, trusted); });
}

Val Builder::finish() {
  charge_ = Charge();  // the string brings its own
  return runtime_.string(std::move(text_));
}

void require_defined(const Val& v) {
  if (!v.is(Kind::kUndefined)) return;
  fail(v.obj == nullptr ? "a value is undefined" : static_cast<const StrObj*>(v.obj.get())->text.bytes());
}

int64_t to_integer(const Val& v, std::string_view what) {
  require_defined(v);
  if (v.is(Kind::kBool)) return v.b ? 1 : 0;
  if (!v.is(Kind::kInt)) fail(std::string(what) + " is a " + std::string(type_name(v)) + ", not an integer");
  return v.i;
}

}  // namespace tally::text::jinja
