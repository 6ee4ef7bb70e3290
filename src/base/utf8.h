#pragma once
// UTF-8, byte by byte: decoding, validation, replacement.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tally::base {

// What stands at the start of some bytes.
struct Utf8Step {
  enum Kind : uint8_t { kValid, kIncomplete, kInvalid };
  Kind kind = kInvalid;
  // kValid: length of the code point. kInvalid: length of the maximal invalid subpart (>= 1), to be replaced
  // by one U+FFFD. kIncomplete: all the bytes given, which more bytes could complete.
  uint8_t length = 1;
  char32_t code_point = 0xFFFD;
};

// Looks at the first code point of `bytes`, which must not be empty. Overlong forms, surrogates and values
// above U+10FFFF are invalid (Unicode table 3-7).
Utf8Step utf8_step(std::string_view bytes);

// Offset of the first byte that is not valid UTF-8, or npos. An incomplete tail is invalid.
size_t utf8_find_invalid(std::string_view text);

// `text` with each maximal invalid subpart replaced by U+FFFD.
std::string utf8_replace_invalid(std::string_view text);

void utf8_append(std::string& out, char32_t code_point);

// For messages and logs: at most `bytes_max` bytes, control characters and invalid bytes escaped as \xNN,
// "..." if cut.
std::string escape_for_log(std::string_view text, size_t bytes_max = 256);

}  // namespace tally::base
