#pragma once
// Sets of characters that the expression of a pre-tokenizer spells out and no Unicode property says. Each is
// a bit of a class (unicode_classes.h).

#include <cstdint>
#include <span>

namespace tally::text {

struct CharacterRange {
  char32_t first, last;
};

struct CharacterSet {
  uint16_t bit;
  std::span<const CharacterRange> ranges;  // ascending
};

std::span<const CharacterSet> character_sets();

}  // namespace tally::text
