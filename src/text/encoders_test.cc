// The two encoders against their definitions, on random vocabularies, with long pieces so that every path is
// taken.

#include "text/bpe.h"
#include "text/spm.h"
#include "text/vocabulary.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

namespace tally::text {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";

// Random words over few characters, no two equal.
std::vector<std::string> random_words(const std::vector<std::string>& letters) {
  const auto word = rc::gen::map(rc::gen::container<std::vector<std::string>>(rc::gen::elementOf(letters)),
                                 [](const std::vector<std::string>& parts) {
                                   std::string out;
                                   for (size_t i = 0; i < parts.size() && i < 6; ++i) out += parts[i];
                                   return out;
                                 });
  std::vector<std::string> words = *rc::gen::container<std::vector<std::string>>(20, word);
  std::sort(words.begin(), words.end());
  words.erase(std::unique(words.begin(), words.end()), words.end());
  std::erase(words, "");
  return words;
}

std::string random_text(const std::vector<std::string>& letters, size_t count) {
  std::string out;
  for (const std::string& s :
       *rc::gen::container<std::vector<std::string>>(count, rc::gen::elementOf(letters)))
    out += s;
  return out;
}

// Section by section the best-scored adjacent pair that is a token, leftmost first.
std::vector<std::string> spm_by_definition(std::vector<std::string> symbols,
                                           const std::map<std::string, float>& scores) {
  for (;;) {
    size_t best = symbols.size();
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto token = scores.find(symbols[i] + symbols[i + 1]);
      if (token == scores.end()) continue;
      if (best == symbols.size() || token->second > scores.at(symbols[best] + symbols[best + 1])) best = i;
    }
    if (best == symbols.size()) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

RC_GTEST_PROP(SpmEncoder, IsTheDefinitionWholeAndInParts, ()) {
  const std::vector<std::string> letters = {"a", "b", "c", "é", std::string(kSpace), std::string(kSpace)};
  const std::vector<std::string> words = random_words(letters);
  VocabularyFields fields;
  fields.byte_level = false;
  std::map<std::string, float> scores;
  std::vector<std::string> byte_pieces;
  for (int byte = 0; byte < 256; ++byte) {
    constexpr std::string_view kDigits = "0123456789ABCDEF";
    std::string piece = "<0x00>";
    piece[3] = kDigits[static_cast<size_t>(byte) / 16];
    piece[4] = kDigits[static_cast<size_t>(byte) % 16];
    byte_pieces.push_back(piece);
  }
  for (const std::string& piece : byte_pieces) fields.tokens.push_back(piece), fields.kinds.push_back(6);
  fields.scores.assign(256, 0);
  for (const std::string& word : words) {
    fields.tokens.push_back(word);
    fields.kinds.push_back(1);
    fields.scores.push_back(static_cast<float>(*rc::gen::inRange(-3, 3)));
    scores[word] = fields.scores.back();
  }
  const auto vocabulary = Vocabulary::build(fields);
  RC_ASSERT(bool{vocabulary});
  const auto encoder = SpmEncoder::build(*vocabulary);
  RC_ASSERT(bool{encoder});

  const std::string text = random_text(letters, *rc::gen::inRange<size_t>(0, 150));
  std::vector<std::string> symbols;
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<uint8_t>(text[i]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : 3;
    symbols.push_back(text.substr(i, length));
    i += length;
  }
  std::vector<TokenId> expected;
  for (const std::string& symbol : spm_by_definition(symbols, scores)) {
    if (scores.contains(symbol)) {
      expected.push_back(TokenId{static_cast<int32_t>(*vocabulary->find(symbol))});
    } else {
      for (const char byte : symbol) expected.push_back(TokenId{static_cast<uint8_t>(byte)});
    }
  }
  MergeScratch scratch;
  std::vector<TokenId> whole, parts;
  RC_ASSERT(encoder->encode_part(text, scratch, whole));
  for (size_t at = 0; at < text.size();) {
    const size_t end = encoder->part_end(text, at);
    RC_ASSERT(encoder->encode_part(std::string_view(text).substr(at, end - at), scratch, parts));
    at = end;
  }
  RC_ASSERT(whole == expected);
  RC_ASSERT(parts == expected);
}

// By pieces of text, from the lowest rank that has a pair, its leftmost pair, from the start again.
std::vector<std::string> bpe_by_definition(std::vector<std::string> symbols,
                                           const std::vector<std::string>& merges) {
  for (size_t rank = 0; rank < merges.size();) {
    size_t i = 0;
    while (i + 1 < symbols.size() && symbols[i] + ' ' + symbols[i + 1] != merges[rank]) ++i;
    if (i + 1 >= symbols.size()) {
      ++rank;
      continue;
    }
    symbols[i] += symbols[i + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    rank = 0;
  }
  return symbols;
}

struct RandomBpe {
  std::vector<std::string> tokens, merges;
};

RandomBpe random_bpe(const std::vector<std::string>& letters) {
  RandomBpe bpe{letters, {}};
  for (int i = 0; i < 15; ++i) {
    const std::string left = *rc::gen::elementOf(bpe.tokens), right = *rc::gen::elementOf(bpe.tokens);
    bpe.merges.push_back(left + ' ' + right);
    if (std::find(bpe.tokens.begin(), bpe.tokens.end(), left + right) == bpe.tokens.end()) {
      bpe.tokens.push_back(left + right);
    }
  }
  return bpe;
}

RC_GTEST_PROP(BpeEncoder, IsTheDefinition, ()) {
  const std::vector<std::string> letters = {"a", "b", "c", "d"};
  const RandomBpe bpe = random_bpe(letters);
  VocabularyFields fields;
  fields.tokens.assign(bpe.tokens.begin(), bpe.tokens.end());
  const auto vocabulary = Vocabulary::build(fields);
  RC_ASSERT(bool{vocabulary});
  const std::vector<std::string_view> merge_views(bpe.merges.begin(), bpe.merges.end());
  const auto encoder = BpeEncoder::build(*vocabulary, merge_views, {});
  RC_ASSERT(bool{encoder});

  const std::string text = random_text(letters, *rc::gen::inRange<size_t>(0, 150));
  std::vector<std::string> symbols;
  for (const char c : text) symbols.emplace_back(1, c);
  std::vector<TokenId> expected, got;
  for (const std::string& s : bpe_by_definition(symbols, bpe.merges)) {
    expected.push_back(TokenId{static_cast<int32_t>(*vocabulary->find(s))});
  }
  MergeScratch scratch;
  RC_ASSERT(encoder->encode_piece(text, scratch, got));
  RC_ASSERT(got == expected);
}

// Characters as symbols, one of them without a token, whole and cut into words.
RC_GTEST_PROP(BpeEncoder, OnCharactersIsTheDefinitionWholeAndInParts, ()) {
  const std::vector<std::string> letters = {"a", "é", "中", std::string(kSpace)};
  const RandomBpe bpe = random_bpe(letters);
  VocabularyFields fields;
  fields.byte_level = false;
  for (const std::string& token : bpe.tokens) fields.tokens.push_back(token), fields.kinds.push_back(1);
  const size_t first_byte = fields.tokens.size();
  fields.tokens.insert(fields.tokens.end(), {"<0xC3>", "<0xA8>"});
  fields.kinds.insert(fields.kinds.end(), {6, 6});
  const auto vocabulary = Vocabulary::build(fields);
  RC_ASSERT(bool{vocabulary});
  const std::vector<std::string_view> merge_views(bpe.merges.begin(), bpe.merges.end());
  const auto encoder = BpeEncoder::build(*vocabulary, merge_views, {.raw_utf8 = true});
  RC_ASSERT(bool{encoder});

  std::vector<std::string> more = letters;
  more.push_back("è");
  const size_t count = *rc::gen::inRange<size_t>(0, 150);
  const auto symbols = *rc::gen::container<std::vector<std::string>>(count, rc::gen::elementOf(more));
  std::string text;
  for (const std::string& s : symbols) text += s;
  std::vector<TokenId> expected;
  for (const std::string& s : bpe_by_definition(symbols, bpe.merges)) {
    if (const auto id = vocabulary->find(s)) {
      expected.push_back(TokenId{static_cast<int32_t>(*id)});
    } else {
      RC_ASSERT(s == "è");
      expected.push_back(TokenId{static_cast<int32_t>(first_byte)});
      expected.push_back(TokenId{static_cast<int32_t>(first_byte + 1)});
    }
  }
  MergeScratch scratch;
  std::vector<TokenId> whole, parts;
  RC_ASSERT(encoder->encode_piece(text, scratch, whole));
  for (size_t at = 0; at < text.size();) {
    const size_t end = encoder->part_end(text, at);
    RC_ASSERT(encoder->encode_piece(std::string_view(text).substr(at, end - at), scratch, parts));
    at = end;
  }
  RC_ASSERT(whole == expected);
  RC_ASSERT(parts == expected);
}

// G21, G29. Refused for their number, before anything is built of them.
TEST(Bounds, TooManyMergesAndTooManyTokens) {
  const std::vector<std::string_view> letter = {"a"};
  VocabularyFields fields;
  fields.tokens = letter;
  const auto vocabulary = Vocabulary::build(fields);
  ASSERT_TRUE(vocabulary);
  const std::vector<std::string_view> merges(kMergesMax + 1, "a a");
  const auto encoder = BpeEncoder::build(*vocabulary, merges, {});
  ASSERT_FALSE(encoder);
  EXPECT_EQ(encoder.error().message,
            "tokenizer.ggml.merges has 2097153 entries; at most 2097152 are allowed");

  fields.tokens.assign(kVocabularyMax + 1, "a");
  const auto many = Vocabulary::build(fields);
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().message, "tokenizer.ggml.tokens has 4194305 entries; 1 to 4194304 are allowed");
  fields.tokens.clear();
  EXPECT_FALSE(Vocabulary::build(fields));
}

}  // namespace
}  // namespace tally::text
