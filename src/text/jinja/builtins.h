#pragma once
// Filters, tests, methods and global functions, as tables of plain functions: to add one, write it and add
// its row.

#include "text/jinja/runtime.h"
#include "text/jinja/value.h"

#include <string_view>
#include <utility>
#include <vector>

namespace tally::text::jinja {

struct Args {
  ValList values;                                       // by position
  std::vector<std::pair<std::string_view, Val>> named;  // by keyword

  // The argument at `index` or called `name`; null if not given.
  const Val* find(size_t index, std::string_view name) const;
};

using FilterFn = Val (*)(Runtime&, const Val& subject, const Args&);
using TestFn = bool (*)(Runtime&, const Val& subject, const Args&);
using MethodFn = FilterFn;
using FunctionFn = Val (*)(Runtime&, const Args&);

// Null if there is none of that name.
FilterFn find_filter(std::string_view name);
TestFn find_test(std::string_view name);
MethodFn find_method(Kind kind, std::string_view name);

// Global functions by index; -1 if there is none of that name.
int find_function(std::string_view name);
Val call_function(Runtime& runtime, int64_t index, const Args& args);

struct MethodObj : Obj {
  Val subject;
  MethodFn function = nullptr;
};

// Attribute or item as Jinja looks it up; undefined if absent. Errors: Fault if `subject` is undefined.
Val get_attribute(Runtime& runtime, const Val& subject, std::string_view name);
Val get_item(Runtime& runtime, const Val& subject, const Val& key);
// A dotted path, for filters that take attribute="a.b". What is missing on the way becomes `fallback`, if
// there is one.
Val get_path(Runtime& runtime, const Val& subject, std::string_view path, const Val* fallback = nullptr);

}  // namespace tally::text::jinja
