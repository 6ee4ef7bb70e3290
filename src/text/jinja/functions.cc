// Global functions, attribute and item lookup.

#include "text/jinja/builtins.h"
#include "text/jinja/calendar.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

#include <algorithm>
#include <array>

namespace tally::text::jinja {
namespace {

Val make_range(Runtime& runtime, const Args& args) {
  if (args.values.empty() || args.values.size() > 3) fail("range expects 1 to 3 arguments");
  int64_t from = 0, to = to_integer(args.values[0], "an argument of range"), step = 1;
  if (args.values.size() > 1) {
    from = to;
    to = to_integer(args.values[1], "an argument of range");
  }
  if (args.values.size() > 2) step = to_integer(args.values[2], "an argument of range");
  if (step == 0) fail("range() arg 3 must not be zero");
  // In 128 bits, as the ends may be far apart.
  const __int128 span = step > 0 ? static_cast<__int128>(to) - from : static_cast<__int128>(from) - to;
  const __int128 stride = step > 0 ? step : -static_cast<__int128>(step);
  const __int128 count = span <= 0 ? 0 : (span + stride - 1) / stride;
  if (count > kRangeMax)
    fail("range too big: at most " + std::to_string(kRangeMax) + " elements are allowed");
  ValList items;
  items.reserve(static_cast<size_t>(count));
  for (int64_t k = 0; k < static_cast<int64_t>(count); ++k) items.push_back(Val::integer(from + k * step));
  return runtime.list(std::move(items));
}

// Mappings by position, then keywords: the arguments of namespace and dict.
Pairs collect_pairs(Runtime& runtime, const Args& args, std::string_view what) {
  Pairs out;
  for (const Val& v : args.values) {
    if (!v.is(Kind::kDict)) fail(std::string(what) + " takes mappings and keyword arguments");
    for (const auto& item : v.dict().items) out.push_back(item);
  }
  for (const auto& [key, value] : args.named) out.emplace_back(runtime.string(key, true), value);
  return out;
}

Val make_dict(Runtime& runtime, const Args& args) {
  return runtime.dict(collect_pairs(runtime, args, "dict"));
}

Val make_namespace(Runtime& runtime, const Args& args) {
  Val out = runtime.make_namespace();
  NamespaceObj& ns = out.ns();
  for (auto& [key, value] : collect_pairs(runtime, args, "namespace")) {
    if (!key.is(Kind::kString)) fail("an attribute of a namespace is named by a string");
    const std::string& name = key.str().bytes();
    ns.charge.add(sizeof(Val) + name.size());
    if (Val* known = ns.find(name))
      *known = std::move(value);
    else
      ns.attributes.emplace_back(name, std::move(value));
  }
  return out;
}

Val raise_exception(Runtime& runtime, const Args& args) {
  const Val* message = args.find(0, "message");
  throw Fault{message != nullptr ? to_string(runtime, *message).str().bytes() : "", 0, true};
}

Val format_now(Runtime& runtime, const Args& args) {
  const Val* format = args.find(0, "format");
  if (format == nullptr || !format->is(Kind::kString)) fail("strftime_now takes a format string");
  // The format of a well-behaved template is its own text; if it came from outside, so does the result.
  runtime.meter().text(format->str().size() * 8);
  return runtime.string(format_time(format->str().bytes(), runtime.now_s()), format->str().all_trusted());
}

struct Function {
  std::string_view name;
  FunctionFn call;
};

constexpr std::array<Function, 5> kFunctions = {{{"range", make_range},
                                                 {"namespace", make_namespace},
                                                 {"dict", make_dict},
                                                 {"raise_exception", raise_exception},
                                                 {"strftime_now", format_now}}};

// "'dict object' has no attribute 'x'", as Jinja words it.
std::string missing(const Val& subject, std::string_view name) {
  const std::string kind = subject.is(Kind::kNone) ? "None" : std::string(type_name(subject)) + " object";
  return "'" + kind + "' has no attribute '" + std::string(name.substr(0, 128)) + "'";
}

Val loop_attribute(Runtime& runtime, const Val& subject, std::string_view name) {
  const auto& loop = static_cast<const LoopObj&>(*subject.obj);
  const ValList& items = static_cast<const ListObj&>(*loop.items).items;
  const auto index = static_cast<int64_t>(loop.index);
  const auto size = static_cast<int64_t>(items.size());
  if (name == "index") return Val::integer(index + 1);
  if (name == "index0") return Val::integer(index);
  if (name == "first") return Val::boolean(index == 0);
  if (name == "last") return Val::boolean(index + 1 == size);
  if (name == "length") return Val::integer(size);
  if (name == "revindex") return Val::integer(size - index);
  if (name == "revindex0") return Val::integer(size - index - 1);
  if (name == "depth") return Val::integer(1);
  if (name == "depth0") return Val::integer(0);
  if (name == "previtem")
    return index > 0 ? items[loop.index - 1] : runtime.undefined("there is no previous item");
  if (name == "nextitem")
    return index + 1 < size ? items[loop.index + 1] : runtime.undefined("there is no next item");
  return runtime.undefined(missing(subject, name));
}

Val bind_method(Runtime& runtime, const Val& subject, MethodFn function) {
  auto method = std::make_shared<MethodObj>();
  runtime.adopt(*method, sizeof(MethodObj), depth_of(subject) + 1);
  method->subject = subject;
  method->function = function;
  return Val(Kind::kMethod, std::move(method));
}

Val list_item(Runtime& runtime, const Val& subject, int64_t index) {
  const ValList& items = subject.list().items;
  const auto size = static_cast<int64_t>(items.size());
  const int64_t at = index < 0 ? index + size : index;
  if (at >= 0 && at < size) return items[static_cast<size_t>(at)];
  return runtime.undefined(std::string(type_name(subject)) + " object has no element " +
                           std::to_string(index));
}

Val char_item(Runtime& runtime, const Val& subject, int64_t index) {
  const int64_t size = length_of(runtime, subject);
  const int64_t at = index < 0 ? index + size : index;
  if (at < 0 || at >= size) return runtime.undefined("str object has no element " + std::to_string(index));
  SliceParts parts{Val::integer(at), Val::integer(at + 1), Val::none()};
  return slice(runtime, subject, parts);
}

}  // namespace

const Val* Args::find(size_t index, std::string_view name) const {
  if (index < values.size()) return &values[index];
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

int find_function(std::string_view name) {
  for (size_t i = 0; i < kFunctions.size(); ++i)
    if (kFunctions[i].name == name) return static_cast<int>(i);
  return -1;
}

Val call_function(Runtime& runtime, int64_t index, const Args& args) {
  return kFunctions[static_cast<size_t>(index)].call(runtime, args);
}

Val get_attribute(Runtime& runtime, const Val& subject, std::string_view name) {
  require_defined(subject);
  if (const MethodFn method = find_method(subject.kind, name)) return bind_method(runtime, subject, method);
  if (subject.is(Kind::kDict)) {
    if (const Val* value = subject.dict().find(name)) return *value;
  } else if (subject.is(Kind::kNamespace)) {
    if (const Val* value = subject.ns().find(name)) return *value;
  } else if (subject.is(Kind::kLoop)) {
    return loop_attribute(runtime, subject, name);
  }
  return runtime.undefined(missing(subject, name));
}

Val get_item(Runtime& runtime, const Val& subject, const Val& key) {
  require_defined(subject);
  require_defined(key);
  if (subject.is(Kind::kDict)) {
    runtime.meter().step(key.is(Kind::kString) ? 1 : 1 + subject.dict().items.size() / 8);
    if (const Val* value = subject.dict().find(key)) return *value;
  }
  if (key.is(Kind::kString)) return get_attribute(runtime, subject, key.str().bytes());
  const bool indexed = key.is(Kind::kInt) || key.is(Kind::kBool);
  if (indexed && subject.is(Kind::kList)) return list_item(runtime, subject, to_integer(key, "an index"));
  if (indexed && subject.is(Kind::kString)) return char_item(runtime, subject, to_integer(key, "an index"));
  return runtime.undefined(std::string(type_name(subject)) + " object has no such element");
}

Val get_path(Runtime& runtime, const Val& subject, std::string_view path, const Val* fallback) {
  Val at = subject;
  for (const Piece& piece : split_by(path, ".", -1, false)) {
    const std::string_view part = path.substr(piece.from, piece.to - piece.from);
    const bool number =
        !part.empty() && part.size() < 10 && part.find_first_not_of("0123456789") == std::string_view::npos;
    int64_t index = 0;
    for (const char c : part) index = number ? index * 10 + (c - '0') : 0;
    at = get_item(runtime, at, number ? Val::integer(index) : runtime.string(part, true));
    if (at.is(Kind::kUndefined) && fallback != nullptr) at = *fallback;
  }
  return at;
}

}  // namespace tally::text::jinja
