#include "text/character_pairs.h"

#include "base/utf8.h"
#include "text/hash.h"

namespace tally::text {

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = static_cast<uint8_t>(text[at]);
  if (byte < 0x80) return {byte, 1};
  const base::Utf8Step step = base::utf8_step(text.substr(at));
  if (step.kind != base::Utf8Step::kValid) return {kLooseByte + byte, 1};
  return {step.code_point, step.length};
}

std::string character_bytes(char32_t value) {
  std::string out;
  if (value >= kLooseByte) {
    out += static_cast<char>(value - kLooseByte);
  } else {
    base::utf8_append(out, value);
  }
  return out;
}

size_t CharacterPairs::hash(char32_t first, char32_t second) { return hash_mix(first, second) % kBits; }

void CharacterPairs::add(std::string_view piece) {
  if (piece.empty()) return;
  CodePoint before = code_point_at(piece, 0);
  for (size_t i = before.length; i < piece.size();) {
    const CodePoint c = code_point_at(piece, i);
    add(before.value, c.value);
    before = c;
    i += c.length;
  }
}

size_t CharacterPairs::part_end(std::string_view spelled, size_t at) const {
  for (size_t i = at + 1; i < spelled.size(); ++i) {
    i = spelled.find(kSpelledSpace, i);
    if (i == std::string_view::npos) break;
    // The character before: step back over at most three continuation bytes.
    size_t before = i - 1;
    while (before > at && i - before < 4 && (static_cast<uint8_t>(spelled[before]) & 0xC0) == 0x80) --before;
    CodePoint c = code_point_at(spelled.substr(0, i), before);
    if (before + c.length != i) c = {kLooseByte + static_cast<uint8_t>(spelled[i - 1]), 1};
    if (!may_join(c.value, kSpelledSpaceCodePoint)) return i;
  }
  return spelled.size();
}

}  // namespace tally::text
