#pragma once
// Which characters stand side by side in some piece of a vocabulary: where two do not, no merge can reach
// across, and a text may be cut there without changing its ids.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tally::text {

inline constexpr std::string_view kSpelledSpace = "\xE2\x96\x81";  // U+2581, as SPM spells U+0020
inline constexpr char32_t kSpelledSpaceCodePoint = 0x2581;

// A character of a text, or a byte that is none: kLooseByte + the byte.
inline constexpr char32_t kLooseByte = 0x200000;
struct CodePoint {
  char32_t value;
  uint32_t length;
};
// Requires at < text.size().
CodePoint code_point_at(std::string_view text, size_t at);
// The bytes of CodePoint::value.
std::string character_bytes(char32_t value);

class CharacterPairs {
 public:
  CharacterPairs() : bits_(kBits) {}

  // The neighbours in `piece` may join.
  void add(std::string_view piece);
  void add(char32_t first, char32_t second) { bits_[hash(first, second)] = true; }
  // False only if no piece holds these characters side by side.
  bool may_join(char32_t first, char32_t second) const { return bits_[hash(first, second)]; }

  // End of the part of `spelled` that begins at `at`: before a U+2581 that joins nothing before it, so parts
  // are words. Runs of U+2581 are cut only if they have no pair of their own.
  size_t part_end(std::string_view spelled, size_t at) const;

  size_t memory_bytes() const { return bits_.capacity() / 8; }

 private:
  static constexpr size_t kBits = 1u << 21;  // 256 KiB, so that few pairs share a bit
  static size_t hash(char32_t first, char32_t second);

  std::vector<bool> bits_;
};

}  // namespace tally::text
