// Methods of strings and mappings, after Python. Only those that change nothing exist.

#include "text/jinja/builtins.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/text_ops.h"

#include <array>

namespace tally::text::jinja {
namespace {

const Val& required(const Args& args, size_t index, std::string_view name) {
  const Val* v = args.find(index, name);
  if (v == nullptr) fail("a method lacks its argument '" + std::string(name) + "'");
  return *v;
}

template <Side side>
Val strip_text(Runtime& runtime, const Val& self, const Args& args) {
  return strip_value(runtime, self.str(), side, args.find(0, "chars"));
}

template <bool from_right>
Val split_text(Runtime& runtime, const Val& self, const Args& args) {
  const Str& text = self.str();
  const Val* separator = args.find(0, "sep");
  const Val* most = args.find(1, "maxsplit");
  const int64_t splits = most != nullptr ? to_integer(*most, "maxsplit") : -1;
  runtime.meter().text(text.size());
  if (separator == nullptr || separator->is(Kind::kNone)) {
    if (from_right && splits >= 0) fail("rsplit with maxsplit needs a separator");
    return list_of_pieces(runtime, text, split_space(text.bytes(), splits));
  }
  const Str& by = text_of(*separator, "the separator of split");
  if (by.empty()) fail("empty separator");
  runtime.meter().search(text.size(), by.size());
  runtime.heap().ask(text.size() / by.size());  // at least a byte a piece
  return list_of_pieces(runtime, text, split_by(text.bytes(), by.bytes(), splits, from_right));
}

Val split_into_lines(Runtime& runtime, const Val& self, const Args& args) {
  const Val* keep = args.find(0, "keepends");
  runtime.meter().text(self.str().size());
  return list_of_pieces(runtime, self.str(),
                        split_lines(self.str().bytes(), keep != nullptr && truth(*keep)));
}

bool has_affix(const std::string& text, const std::string& affix, bool at_end) {
  return at_end ? text.ends_with(affix) : text.starts_with(affix);
}

template <bool at_end>
Val with_affix(Runtime& runtime, const Val& self, const Args& args) {
  const Val& affix = required(args, 0, "prefix");
  if (!affix.is(Kind::kList))
    return Val::boolean(has_affix(self.str().bytes(), text_of(affix, "an affix").bytes(), at_end));
  for (const Val& one : affix.list().items) {
    runtime.meter().text(self.str().size());
    if (has_affix(self.str().bytes(), text_of(one, "an affix").bytes(), at_end)) return Val::boolean(true);
  }
  return Val::boolean(false);
}

template <bool at_end>
Val without_affix(Runtime& runtime, const Val& self, const Args& args) {
  const Str& text = self.str();
  const Str& affix = text_of(required(args, 0, "prefix"), "an affix");
  if (!has_affix(text.bytes(), affix.bytes(), at_end)) return self;
  return runtime.string(at_end ? text.slice(0, text.size() - affix.size())
                               : text.slice(affix.size(), text.size()));
}

template <Letters letters>
Val cased(Runtime& runtime, const Val& self, const Args&) {
  runtime.meter().text(self.str().size() * 4);
  return runtime.string(change_case(self.str(), letters));
}

template <CharClass wanted>
Val all_of(Runtime& runtime, const Val& self, const Args&) {
  runtime.meter().text(self.str().size());
  return Val::boolean(all_chars(self.str().bytes(), wanted));
}

Val replace_text(Runtime& runtime, const Val& self, const Args& args) {
  const Val* most = args.find(2, "count");
  return replace_all(runtime, self.str(), text_of(required(args, 0, "old"), "an argument of replace"),
                     text_of(required(args, 1, "new"), "an argument of replace"),
                     most != nullptr ? to_integer(*most, "count") : -1);
}

template <bool from_right>
Val find_text(Runtime& runtime, const Val& self, const Args& args) {
  const std::string& text = self.str().bytes();
  const std::string& what = text_of(required(args, 0, "sub"), "an argument of find").bytes();
  runtime.meter().search(text.size(), what.size());
  const size_t at = from_right ? text.rfind(what) : text.find(what);
  if (at == std::string::npos) return Val::integer(-1);
  return Val::integer(static_cast<int64_t>(count_chars(std::string_view(text).substr(0, at))));
}

Val count_text(Runtime& runtime, const Val& self, const Args& args) {
  const std::string& text = self.str().bytes();
  const std::string& what = text_of(required(args, 0, "sub"), "an argument of count").bytes();
  runtime.meter().search(text.size(), what.size());
  if (what.empty()) return Val::integer(length_of(runtime, self) + 1);
  int64_t n = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += what.size()) ++n;
  return Val::integer(n);
}

Val join_text(Runtime& runtime, const Val& self, const Args& args) {
  Builder out(runtime);
  bool first = true;
  for (const Val& item : to_items(runtime, required(args, 0, "iterable"))) {
    if (!first) out.append(self.str());
    first = false;
    out.append(text_of(item, "an item of join"));
  }
  return out.finish();
}

Val dict_items(Runtime& runtime, const Val& self, const Args&) { return pairs_of(runtime, self); }

Val dict_keys(Runtime& runtime, const Val& self, const Args&) {
  return runtime.list(to_items(runtime, self));
}

Val dict_values(Runtime& runtime, const Val& self, const Args&) {
  ValList values;
  for (const auto& [key, value] : self.dict().items) values.push_back(value);
  return runtime.list(std::move(values));
}

Val dict_get(Runtime& runtime, const Val& self, const Args& args) {
  const Val& key = required(args, 0, "key");
  runtime.meter().step(key.is(Kind::kString) ? 1 : 1 + self.dict().items.size() / 8);
  if (const Val* value = self.dict().find(key)) return *value;
  const Val* otherwise = args.find(1, "default");
  return otherwise != nullptr ? *otherwise : Val::none();
}

Val dict_copy(Runtime&, const Val& self, const Args&) { return self; }

Val list_index(Runtime& runtime, const Val& self, const Args& args) {
  const ValList& items = self.list().items;
  for (size_t i = 0; i < items.size(); ++i)
    if (equals(runtime.meter(), items[i], required(args, 0, "value")))
      return Val::integer(static_cast<int64_t>(i));
  fail("the value is not in the list");
}

Val list_count(Runtime& runtime, const Val& self, const Args& args) {
  int64_t n = 0;
  for (const Val& item : self.list().items)
    n += equals(runtime.meter(), item, required(args, 0, "value")) ? 1 : 0;
  return Val::integer(n);
}

Val loop_cycle(Runtime&, const Val& self, const Args& args) {
  if (args.values.empty()) fail("no items for cycling given");
  return args.values[static_cast<const LoopObj&>(*self.obj).index % args.values.size()];
}

struct Method {
  Kind kind;
  std::string_view name;
  MethodFn call;
};

constexpr std::array kMethods = {
    Method{Kind::kString, "strip", strip_text<Side::kBoth>},
    Method{Kind::kString, "lstrip", strip_text<Side::kLeft>},
    Method{Kind::kString, "rstrip", strip_text<Side::kRight>},
    Method{Kind::kString, "split", split_text<false>},
    Method{Kind::kString, "rsplit", split_text<true>},
    Method{Kind::kString, "splitlines", split_into_lines},
    Method{Kind::kString, "startswith", with_affix<false>},
    Method{Kind::kString, "endswith", with_affix<true>},
    Method{Kind::kString, "removeprefix", without_affix<false>},
    Method{Kind::kString, "removesuffix", without_affix<true>},
    Method{Kind::kString, "upper", cased<Letters::kUpper>},
    Method{Kind::kString, "lower", cased<Letters::kLower>},
    Method{Kind::kString, "title", cased<Letters::kTitle>},
    Method{Kind::kString, "capitalize", cased<Letters::kCapitalized>},
    Method{Kind::kString, "swapcase", cased<Letters::kSwapped>},
    Method{Kind::kString, "isdigit", all_of<CharClass::kDigit>},
    Method{Kind::kString, "isalpha", all_of<CharClass::kAlpha>},
    Method{Kind::kString, "isalnum", all_of<CharClass::kAlnum>},
    Method{Kind::kString, "isspace", all_of<CharClass::kSpace>},
    Method{Kind::kString, "isupper", all_of<CharClass::kUpper>},
    Method{Kind::kString, "islower", all_of<CharClass::kLower>},
    Method{Kind::kString, "replace", replace_text},
    Method{Kind::kString, "find", find_text<false>},
    Method{Kind::kString, "rfind", find_text<true>},
    Method{Kind::kString, "count", count_text},
    Method{Kind::kString, "join", join_text},
    Method{Kind::kDict, "items", dict_items},
    Method{Kind::kDict, "keys", dict_keys},
    Method{Kind::kDict, "values", dict_values},
    Method{Kind::kDict, "get", dict_get},
    Method{Kind::kDict, "copy", dict_copy},
    Method{Kind::kList, "index", list_index},
    Method{Kind::kList, "count", list_count},
    Method{Kind::kLoop, "cycle", loop_cycle},
};

}  // namespace

MethodFn find_method(Kind kind, std::string_view name) {
  for (const Method& method : kMethods)
    if (method.kind == kind && method.name == name) return method.call;
  return nullptr;
}

}  // namespace tally::text::jinja
