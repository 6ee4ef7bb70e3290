// Filters of lists and mappings.

#include "text/jinja/filter_tables.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/text_ops.h"

#include <algorithm>
#include <array>

namespace tally::text::jinja {
namespace {

const Val* attribute_of(const Args& args, size_t index) {
  const Val* v = args.find(index, "attribute");
  return v == nullptr || v->is(Kind::kNone) ? nullptr : v;
}

// What the filter looks at in one item: the item, or the attribute at a dotted path.
Val aspect(Runtime& runtime, const Val& item, const Val* attribute, const Val* fallback = nullptr) {
  if (attribute == nullptr) return item;
  if (attribute->is(Kind::kInt)) return get_item(runtime, item, *attribute);
  return get_path(runtime, item, text_of(*attribute, "attribute").bytes(), fallback);
}

Val fold_case(Runtime& runtime, const Val& v, bool case_sensitive) {
  if (case_sensitive || !v.is(Kind::kString)) return v;
  runtime.meter().text(v.str().size() * 4);
  return runtime.string(change_case(v.str(), Letters::kLower));
}

bool flag(const Args& args, size_t index, std::string_view name) {
  const Val* v = args.find(index, name);
  return v != nullptr && truth(*v);
}

struct Keyed {
  Val key, item;
};

void sort_keyed(Runtime& runtime, std::vector<Keyed>& list, bool reverse) {
  std::stable_sort(list.begin(), list.end(), [&](const Keyed& a, const Keyed& b) {
    return reverse ? compare(runtime.meter(), b.key, a.key) < 0 : compare(runtime.meter(), a.key, b.key) < 0;
  });
}

Val unkeyed(Runtime& runtime, std::vector<Keyed> list) {
  ValList items;
  for (Keyed& k : list) items.push_back(std::move(k.item));
  return runtime.list(std::move(items));
}

Val length(Runtime& runtime, const Val& v, const Args&) { return Val::integer(length_of(runtime, v)); }

Val as_list(Runtime& runtime, const Val& v, const Args&) { return runtime.list(to_items(runtime, v)); }

Val first(Runtime& runtime, const Val& v, const Args&) {
  if (v.is(Kind::kString)) return get_item(runtime, v, Val::integer(0));
  ValList items = to_items(runtime, v);
  return items.empty() ? runtime.undefined("No first item, sequence was empty.") : items.front();
}

Val last(Runtime& runtime, const Val& v, const Args&) {
  if (v.is(Kind::kString)) return get_item(runtime, v, Val::integer(-1));
  ValList items = to_items(runtime, v);
  return items.empty() ? runtime.undefined("No last item, sequence was empty.") : items.back();
}

Val join(Runtime& runtime, const Val& v, const Args& args) {
  const Val* by = args.find(0, "d");
  const Val separator = by != nullptr ? to_string(runtime, *by) : runtime.string("", true);
  const Val* attribute = attribute_of(args, 1);
  Builder out(runtime);
  bool begun = false;
  for (const Val& item : to_items(runtime, v)) {
    if (begun) out.append(separator.str());
    begun = true;
    print_to(out, aspect(runtime, item, attribute));
  }
  return out.finish();
}

Val items(Runtime& runtime, const Val& v, const Args&) {
  if (v.is(Kind::kUndefined)) return runtime.list({});
  if (!v.is(Kind::kDict)) fail("Can only get item pairs from a mapping.");
  return pairs_of(runtime, v);
}

Val dictsort(Runtime& runtime, const Val& v, const Args& args) {
  require_defined(v);
  if (!v.is(Kind::kDict)) fail("dictsort takes a mapping, not a " + std::string(type_name(v)));
  const Val* by = args.find(1, "by");
  const std::string side = by != nullptr ? text_of(*by, "by").bytes() : "key";
  if (side != "key" && side != "value") fail("You can only sort by either \"key\" or \"value\"");
  std::vector<Keyed> list;
  for (const auto& [key, value] : v.dict().items)
    list.push_back({fold_case(runtime, side == "key" ? key : value, flag(args, 0, "case_sensitive")),
                    runtime.list({key, value}, true)});
  sort_keyed(runtime, list, flag(args, 2, "reverse"));
  return unkeyed(runtime, std::move(list));
}

Val sorted(Runtime& runtime, const Val& v, const Args& args) {
  const Val* attribute = attribute_of(args, 2);
  std::vector<Keyed> list;
  for (const Val& item : to_items(runtime, v))
    list.push_back(
        {fold_case(runtime, aspect(runtime, item, attribute), flag(args, 1, "case_sensitive")), item});
  sort_keyed(runtime, list, flag(args, 0, "reverse"));
  return unkeyed(runtime, std::move(list));
}

template <bool greatest>
Val extreme(Runtime& runtime, const Val& v, const Args& args) {
  const Val* attribute = attribute_of(args, 1);
  std::vector<Keyed> list;
  for (const Val& item : to_items(runtime, v))
    list.push_back(
        {fold_case(runtime, aspect(runtime, item, attribute), flag(args, 0, "case_sensitive")), item});
  if (list.empty()) return runtime.undefined("No aggregated item, sequence was empty.");
  size_t best = 0;
  for (size_t i = 1; i < list.size(); ++i) {
    const int order = compare(runtime.meter(), list[i].key, list[best].key);
    if (greatest ? order > 0 : order < 0) best = i;
  }
  return list[best].item;
}

Val unique(Runtime& runtime, const Val& v, const Args& args) {
  const Val* attribute = attribute_of(args, 1);
  ValList keys, kept;
  for (const Val& item : to_items(runtime, v)) {
    Val key = fold_case(runtime, aspect(runtime, item, attribute), flag(args, 0, "case_sensitive"));
    const bool known =
        std::any_of(keys.begin(), keys.end(), [&](const Val& k) { return equals(runtime.meter(), k, key); });
    if (known) continue;
    keys.push_back(std::move(key));
    kept.push_back(item);
  }
  return runtime.list(std::move(kept));
}

Val reversed(Runtime& runtime, const Val& v, const Args&) {
  if (v.is(Kind::kString)) {
    SliceParts parts{Val::none(), Val::none(), Val::integer(-1)};
    return slice(runtime, v, parts);
  }
  ValList list = to_items(runtime, v);
  std::reverse(list.begin(), list.end());
  return runtime.list(std::move(list));
}

Val sum(Runtime& runtime, const Val& v, const Args& args) {
  const Val* attribute = attribute_of(args, 0);
  const Val* start = args.find(1, "start");
  Val total = start != nullptr ? *start : Val::integer(0);
  for (const Val& item : to_items(runtime, v))
    total = arithmetic(runtime, Op::kAdd, std::move(total), aspect(runtime, item, attribute));
  return total;
}

// `args` without its first `n` positional ones: what a named filter or test gets.
Args rest_of(const Args& args, size_t n) {
  Args rest;
  for (size_t i = n; i < args.values.size(); ++i) rest.values.push_back(args.values[i]);
  rest.named = args.named;
  return rest;
}

Val map(Runtime& runtime, const Val& v, const Args& args) {
  ValList out;
  if (args.values.empty()) {
    const Val* attribute = attribute_of(args, 0);
    if (attribute == nullptr) fail("map requires a filter argument");
    const Val* fallback = args.find(1, "default");
    for (const Val& item : to_items(runtime, v)) out.push_back(aspect(runtime, item, attribute, fallback));
    return runtime.list(std::move(out));
  }
  const std::string& name = text_of(args.values[0], "the filter of map").bytes();
  const FilterFn filter = find_filter(name);
  if (filter == nullptr) fail("filter '" + name.substr(0, 64) + "' is not supported");
  if (filter == &map) fail("map of map is not supported");  // no recursion through names
  const Args rest = rest_of(args, 1);
  for (const Val& item : to_items(runtime, v)) out.push_back(filter(runtime, item, rest));
  return runtime.list(std::move(out));
}

// select, reject (by_attribute = false), selectattr, rejectattr.
template <bool keeps, bool by_attribute>
Val choose(Runtime& runtime, const Val& v, const Args& args) {
  constexpr size_t test_at = by_attribute ? 1 : 0;
  if (args.values.size() < test_at) fail("selectattr and rejectattr require an attribute");
  TestFn test = nullptr;
  if (args.values.size() > test_at) {
    const std::string& name = text_of(args.values[test_at], "the test of select").bytes();
    test = find_test(name);
    if (test == nullptr) fail("test '" + name.substr(0, 64) + "' is not supported");
  }
  const Args rest = rest_of(args, test_at + 1);
  ValList out;
  for (Val& item : to_items(runtime, v)) {
    const Val part = by_attribute ? aspect(runtime, item, &args.values[0]) : item;
    runtime.meter().step();
    if ((test != nullptr ? test(runtime, part, rest) : truth(part)) == keeps) out.push_back(std::move(item));
  }
  return runtime.list(std::move(out));
}

Val attribute(Runtime& runtime, const Val& v, const Args& args) {
  const Val* name = args.find(0, "name");
  if (name == nullptr) fail("attr takes a name");
  return get_attribute(runtime, v, text_of(*name, "the name of attr").bytes());
}

Val batch(Runtime& runtime, const Val& v, const Args& args) {
  const Val *count = args.find(0, "linecount"), *fill = args.find(1, "fill_with");
  const int64_t n = count != nullptr ? to_integer(*count, "the size of batch") : 0;
  if (n < 1 || n > kRangeMax)
    fail("batch: the size is 1 to " + std::to_string(kRangeMax) + ", not " + std::to_string(n));
  ValList rows, row;
  for (Val& item : to_items(runtime, v)) {
    if (row.size() == static_cast<size_t>(n)) rows.push_back(runtime.list(std::exchange(row, {})));
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (fill != nullptr && !fill->is(Kind::kNone)) row.resize(static_cast<size_t>(n), *fill);
    rows.push_back(runtime.list(std::move(row)));
  }
  return runtime.list(std::move(rows));
}

constexpr std::array kFilters = {
    Filter{"length", length},
    Filter{"count", length},
    Filter{"list", as_list},
    Filter{"first", first},
    Filter{"last", last},
    Filter{"join", join},
    Filter{"items", items},
    Filter{"dictsort", dictsort},
    Filter{"sort", sorted},
    Filter{"min", extreme<false>},
    Filter{"max", extreme<true>},
    Filter{"unique", unique},
    Filter{"reverse", reversed},
    Filter{"sum", sum},
    Filter{"map", map},
    Filter{"select", choose<true, false>},
    Filter{"reject", choose<false, false>},
    Filter{"selectattr", choose<true, true>},
    Filter{"rejectattr", choose<false, true>},
    Filter{"attr", attribute},
    Filter{"batch", batch},
};

}  // namespace

std::span<const Filter> list_filters() { return kFilters; }

FilterFn find_filter(std::string_view name) {
  for (const std::span<const Filter> table : {text_filters(), list_filters()})
    for (const Filter& filter : table)
      if (filter.name == name) return filter.call;
  return nullptr;
}

}  // namespace tally::text::jinja
