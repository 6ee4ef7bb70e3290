#pragma once
// A small vocabulary, and constraints of it. Test support, not in the product.

#include "sample/constraint.h"

#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tally::sample {

inline constexpr int32_t kEndPiece = 0, kControlPiece = 1;

// Every byte, some words, blanks, and pieces that cut characters and JSON anywhere.
inline ConstraintVocabulary pieces() {
  ConstraintVocabulary v;
  v.bytes = {"", ""};
  for (int b = 0; b < 256; ++b) v.bytes.emplace_back(1, static_cast<char>(b));
  for (const char* piece : {"{\"",      "\":",
                            "\": ",     "\",\"",
                            "\"}",      "}}",
                            "[]",       "{}",
                            "],",       " {",
                            "  ",       "\n  ",
                            "true",     "fal",
                            "se",       "null",
                            "na",       "name",
                            "\"name\"", "age",
                            "12",       "007",
                            "-1",       "1e5",
                            "ab",       "abc",
                            "abab",     "bb",
                            "ca",       "cat",
                            "dog",      "do",
                            "\xC3",     "\xA9",
                            "\xC3\xA9", "\xE2\x82",
                            "\xAC",     "\xF0\x9F\x98\x80",
                            "\\u",      "\\\"",
                            "red",      "gre",
                            "en"})
    v.bytes.emplace_back(piece);
  v.end_ids = {TokenId{kEndPiece}};
  return v;
}

inline const ConstraintVocabulary& vocabulary() {
  static const ConstraintVocabulary v = pieces();
  return v;
}

inline std::shared_ptr<const Constraint> compiled(ConstraintCompiler& compiler, ConstraintSpec::Kind kind,
                                                  const std::string& text) {
  auto made = compiler.compile({kind, text});
  EXPECT_TRUE(made) << text << ": " << (made ? "" : made.error().message);
  return made ? *made : nullptr;
}

inline bool is_set(std::span<const uint32_t> mask, size_t id) { return (mask[id / 32] >> (id % 32)) & 1; }

inline TokenId byte_token(char byte) { return TokenId{2 + static_cast<uint8_t>(byte)}; }

inline std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

}  // namespace tally::sample
