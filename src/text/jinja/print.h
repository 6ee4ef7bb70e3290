#pragma once
// Values as text: Python's str() and repr(), and JSON.

#include "text/jinja/runtime.h"

namespace tally::text::jinja {

// str(v): a string as it is, with its trust; any other value is as trusted as what it holds.
Val to_string(Runtime& runtime, const Val& v);
void print_to(Builder& out, const Val& v);

struct JsonStyle {
  int64_t indent = -1;  // < 0: one line
  bool ascii_only = false;
  bool sort_keys = false;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// As Python's json.dumps. The result is one run of text, untrusted if anything in `v` is: JSON's own marks
// are no control tokens, and whole text tokenizes as the model has seen it.
// Errors: NaN, infinity, and what JSON has no form for.
Val to_json(Runtime& runtime, const Val& v, const JsonStyle& style);

// Python's repr of a float: the shortest text that reads back, with ".0" or an exponent.
std::string float_text(double v);

}  // namespace tally::text::jinja
