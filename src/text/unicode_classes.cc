#include "text/unicode_classes.h"

#include "base/utf8.h"
#include "text/character_sets.h"

#include <utf8proc.h>

#include <algorithm>

namespace tally::text {
namespace {

constexpr char32_t kCodePointEnd = 0x110000;

bool is_white_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

uint16_t category_bits(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
      return kLetter | kUpper;
    case UTF8PROC_CATEGORY_LL:
      return kLetter | kLower;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return kLetter | kUncased;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return kNumber;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
      return kPunctuation;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
      return kSymbol;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
      return kMark | kUncased;
    default:
      return 0;
  }
}

uint16_t class_bits(char32_t c) {
  unsigned bits = category_bits(c);
  if (is_white_space(c)) bits |= kSpace;
  if (c == '\r' || c == '\n') bits |= kNewline;
  return static_cast<uint16_t>(bits);
}

}  // namespace

UnicodeClasses::UnicodeClasses() : plane0_(0x10000) {
  std::vector<uint16_t> bits_of(kCodePointEnd);
  for (char32_t c = 0; c < kCodePointEnd; ++c) bits_of[c] = class_bits(c);
  for (const CharacterSet& set : character_sets()) {
    for (const CharacterRange& range : set.ranges) {
      for (char32_t c = range.first; c <= range.last; ++c) bits_of[c] = static_cast<uint16_t>(bits_of[c] | set.bit);
    }
  }
  std::copy_n(bits_of.begin(), plane0_.size(), plane0_.begin());
  for (char32_t c = 0x10000; c < kCodePointEnd; ++c) {
    const uint16_t bits = bits_of[c];
    if (upper_.empty() || upper_.back().bits != bits) upper_.push_back({c, bits});
  }
}

const UnicodeClasses& UnicodeClasses::table() {
  static const UnicodeClasses classes;
  return classes;
}

uint16_t UnicodeClasses::of_upper(char32_t code_point) const {
  const auto after = std::upper_bound(upper_.begin(), upper_.end(), code_point,
                                      [](char32_t c, const Range& range) { return c < range.first; });
  return (after - 1)->bits;
}

Character character_beyond_ascii(const UnicodeClasses& classes, std::string_view text, size_t at) {
  const base::Utf8Step step = base::utf8_step(text.substr(at));
  if (step.kind != base::Utf8Step::kValid) return {0, 1};
  return {classes.of(step.code_point), step.length};
}

}  // namespace tally::text
