#pragma once
// Template source to a Program.

#include "text/jinja/ast.h"

#include <memory>
#include <string_view>

namespace tally::text::jinja {

inline constexpr size_t kSourceBytesMax = 1u << 20;

// Errors: Fault with line and column: not UTF-8, NUL, too long, syntax, too deep, a statement, filter or test
// that is not supported.
std::unique_ptr<const Program> parse_program(std::string_view source);

}  // namespace tally::text::jinja
