#pragma once
// The tables that find_filter looks through.

#include "text/jinja/builtins.h"

#include <span>
#include <string_view>

namespace tally::text::jinja {

struct Filter {
  std::string_view name;
  FilterFn call;
};

std::span<const Filter> text_filters();  // filters_text.cc
std::span<const Filter> list_filters();  // filters_list.cc

}  // namespace tally::text::jinja
