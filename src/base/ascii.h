#pragma once
// Classes of ASCII characters.

namespace tally::base {

// White space as JSON has it, and grammars and schemas.
constexpr bool is_json_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

}  // namespace tally::base
