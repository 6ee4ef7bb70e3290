#pragma once
// What kind of character a code point is, as the pre-tokenizers ask: one table lookup in the BMP, a range
// search above. Source: Unicode 15 general categories (utf8proc) and the White_Space property.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tally::text {

// Bits of a class. A code point without any bit (control, format, unassigned, private use) is "other".
inline constexpr uint16_t kLetter = 1, kNumber = 2, kPunctuation = 4, kSymbol = 8, kMark = 16, kSpace = 32,
                          kNewline = 64;  // CR and LF, which are kSpace too
// Letters and marks by case: Lu Lt, Ll, and Lm Lo M, which have none.
inline constexpr uint16_t kUpper = 128, kLower = 256, kUncased = 512;
// Sets that one family of models spells out as ranges (character_sets.h).
inline constexpr uint16_t kDeepseekLetter = 1024, kDeepseekPunctuation = 2048, kDeepseekEastAsian = 4096,
                          kHanKana = 8192, kBloomStop = 16384;

class UnicodeClasses {
 public:
  // The one table of the process, built at the first call (some milliseconds).
  static const UnicodeClasses& table();

  uint16_t of(char32_t code_point) const {
    return code_point < 0x10000 ? plane0_[code_point] : of_upper(code_point);
  }

 private:
  struct Range {
    char32_t first;
    uint16_t bits;
  };
  UnicodeClasses();
  uint16_t of_upper(char32_t code_point) const;

  std::vector<uint16_t> plane0_;  // [0x10000]
  std::vector<Range> upper_;      // ascending; a range ends where the next begins
};

// One character of a text: its class and its length in bytes. A byte that starts no valid character is one of
// length 1 and of class "other".
struct Character {
  uint16_t bits = 0;
  uint8_t length = 1;
};

Character character_beyond_ascii(const UnicodeClasses& classes, std::string_view text, size_t at);

// Requires at < text.size().
inline Character character_at(const UnicodeClasses& classes, std::string_view text, size_t at) {
  const auto byte = static_cast<uint8_t>(text[at]);
  if (byte < 0x80) return {classes.of(byte), 1};
  return character_beyond_ascii(classes, text, at);
}

}  // namespace tally::text
