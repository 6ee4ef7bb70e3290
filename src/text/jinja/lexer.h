#pragma once
// Template source to tokens, after Jinja's rules for white space (trim_blocks and lstrip_blocks on, one last
// newline dropped).

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tally::text::jinja {

enum class Tok : uint8_t {
  kText,
  kOutputBegin,  // {{
  kOutputEnd,
  kBlockBegin,  // {%
  kBlockEnd,
  kName,
  kString,  // with its quotes
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  Tok kind = Tok::kEnd;
  uint32_t line = 0;
  uint32_t column = 0;    // in characters, from 1
  std::string_view text;  // of the normalized source
};

// `\r\n` and `\r` become `\n`; one newline at the end is dropped.
std::string normalize_newlines(std::string_view source);

// Requires: normalized source that outlives the tokens. Ensures: the last token is kEnd. Errors: Fault with
// line and column.
std::vector<Token> tokenize(std::string_view source);

}  // namespace tally::text::jinja
