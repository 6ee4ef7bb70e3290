#include "base/utf8.h"

#include <fmt/format.h>

namespace tally::base {
namespace {

bool is_tail(uint8_t b) { return (b & 0xC0) == 0x80; }

}  // namespace

Utf8Step utf8_step(std::string_view bytes) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {Utf8Step::kValid, 1, lead};
  uint8_t want = 0;
  uint8_t low = 0x80, high = 0xBF;  // range of the second byte
  char32_t cp = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    want = 2, cp = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    want = 3, cp = lead & 0x0F;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    want = 4, cp = lead & 0x07;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {};
  }
  for (uint8_t i = 1; i < want; ++i) {
    if (i == bytes.size()) return {Utf8Step::kIncomplete, i, 0xFFFD};
    const uint8_t b = at(i);
    const bool ok = i == 1 ? (b >= low && b <= high) : is_tail(b);
    if (!ok) return {Utf8Step::kInvalid, i, 0xFFFD};
    cp = (cp << 6) | (b & 0x3F);
  }
  return {Utf8Step::kValid, want, cp};
}

size_t utf8_find_invalid(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const Utf8Step step = utf8_step(text.substr(i));
    if (step.kind != Utf8Step::kValid) return i;
    i += step.length;
  }
  return std::string_view::npos;
}

std::string utf8_replace_invalid(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  size_t i = 0;
  while (i < text.size()) {
    const Utf8Step step = utf8_step(text.substr(i));
    if (step.kind == Utf8Step::kValid) {
      out.append(text.substr(i, step.length));
    } else {
      out += "\xEF\xBF\xBD";
    }
    i += step.length;
  }
  return out;
}

void utf8_append(std::string& out, char32_t cp) {
  const auto put = [&](char32_t b) { out.push_back(static_cast<char>(b)); };
  if (cp < 0x80) {
    put(cp);
  } else if (cp < 0x800) {
    put(0xC0 | (cp >> 6)), put(0x80 | (cp & 0x3F));
  } else if (cp < 0x10000) {
    put(0xE0 | (cp >> 12)), put(0x80 | ((cp >> 6) & 0x3F)), put(0x80 | (cp & 0x3F));
  } else {
    put(0xF0 | (cp >> 18)), put(0x80 | ((cp >> 12) & 0x3F)), put(0x80 | ((cp >> 6) & 0x3F)),
        put(0x80 | (cp & 0x3F));
  }
}

std::string escape_for_log(std::string_view text, size_t bytes_max) {
  std::string out;
  size_t i = 0;
  while (i < text.size()) {
    const Utf8Step step = utf8_step(text.substr(i));
    const std::string_view part = text.substr(i, step.length);
    std::string shown;
    const bool control = step.code_point < 0x20 || (step.code_point >= 0x7F && step.code_point < 0xA0);
    if (step.kind == Utf8Step::kValid && !control) {
      shown = part;
    } else {
      for (const char c : part) shown += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    }
    if (out.size() + shown.size() > bytes_max) return out + "...";
    out += shown;
    i += step.length;
  }
  return out;
}

}  // namespace tally::base
