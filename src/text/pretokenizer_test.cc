// The hand-written scanners against PCRE2 with the original expressions, on characters whose class did not
// change between Unicode 14 (PCRE2 here) and 15 (the table).

#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/pretokenizer.h"

#include "base/utf8.h"

#include <gtest/gtest.h>
#include <pcre2.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tally::text {
namespace {

class Pattern {
 public:
  explicit Pattern(const std::string& expression) {
    int error = 0;
    PCRE2_SIZE where = 0;
    code_.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                              PCRE2_UTF | PCRE2_UCP, &error, &where, nullptr));
    EXPECT_NE(code_, nullptr) << expression << " at " << where;
    data_.reset(pcre2_match_data_create_from_pattern(code_.get(), nullptr));
  }

  bool matches(const std::string& text) const {
    return pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, 0, data_.get(),
                       nullptr) > 0;
  }

  // Matches of a whole piece, and the gaps between them.
  void cut(const std::string& piece, std::vector<std::string>& out) const {
    size_t at = 0;
    while (at < piece.size()) {
      const int count = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(piece.data()), piece.size(), at,
                                    0, data_.get(), nullptr);
      if (count <= 0) break;
      const PCRE2_SIZE* range = pcre2_get_ovector_pointer(data_.get());
      if (range[0] > at) out.push_back(piece.substr(at, range[0] - at));
      out.push_back(piece.substr(range[0], range[1] - range[0]));
      at = range[1];
    }
    if (at < piece.size()) out.push_back(piece.substr(at));
  }

 private:
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  std::unique_ptr<pcre2_code, Free> code_;
  std::unique_ptr<pcre2_match_data, Free> data_;
};

// [\p{White_Space}] spelled out: with UCP, \s of PCRE2 also has U+180E in some versions.
const std::string kWs =
    R"(\x{09}-\x{0d}\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

std::string ws(std::string expression) {
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"%S", "[^" + kWs + "]"}, {"%s", "[" + kWs + "]"}, {"%w", kWs}}) {
    for (size_t at = 0; (at = expression.find(from, at)) != std::string::npos; at += to.size()) {
      expression.replace(at, from.size(), to);
    }
  }
  return expression;
}

const std::map<std::string, std::vector<std::string>>& expressions() {
  static const std::string kGpt2Text =
      R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^%w\p{L}\p{N}]+|%s+(?!%S))";
  static const std::string kCi = R"('(?:[sS]|[tT]|[rR][eE]|[vV][eE]|[mM]|[lL][lL]|[dD]))";
  static const std::string kTail = R"(%s*[\r\n]+|%s+(?!%S)|%s+)";
  static const auto words_text = [](const std::string& digits) {
    return kCi + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|)" + digits + R"(| ?[^%w\p{L}\p{N}]+[\r\n]*|)" + kTail;
  };
  static const auto cased_text = [](const std::string& after, const std::string& digits) {
    static const std::string kU = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])", kV = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])",
                             kLead = R"([^\r\n\p{L}\p{N}]?)";
    return kLead + kU + "*" + kV + "+" + after + "|" + kLead + kU + "+" + kV + "*" + after + "|" + digits +
           R"(| ?[^%w\p{L}\p{N}]+[\r\n/]*|)" + kTail;
  };
  static const std::string kLinesText = R"([^\n]+|\n+)";
  static const std::string kUnstoppedText = R"( ?[^(%w|.,!?…。，、।۔،)]+)";
  // Ends of ranges that text normalization would replace are written as numbers.
  static const std::string kDeepseekLetters =
      R"(A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿ\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-Ჺ)"
      R"(Ჽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕ)"
      R"(ℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⲳ\x{2CF2}\x{2CF3}Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ)"
      R"(𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃)";
  static const std::string kDeepseekEast = R"([一-龥\x{0800}-\x{4E00}가-\x{D7FF}]+)";
  static const std::map<std::string, std::vector<std::string>> kMap = {
      {"gpt-2", {kGpt2Text}},
      {"smollm", {R"(\p{N})", kGpt2Text}},
      {"llama-bpe", {words_text(R"(\p{N}{1,3})")}},
      {"dbrx", {words_text(R"(\p{N}{1,3})")}},
      {"qwen2", {words_text(R"(\p{N})")}},
      {"qwen35", {kCi + R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^%w\p{L}\p{M}\p{N}]+[\r\n]*|)" + kTail}},
      {"falcon", {R"([\p{P}\$\+<=>\^~\|`]+)", kGpt2Text, R"([0-9][0-9][0-9])"}},
      {"seed-coder", {kCi + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^%w\p{L}\p{N}\r\n]+|)" + kTail}},
      {"bailingmoe",
       {kCi + R"(|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^%w\p{L}\p{N}]+[\r\n]*|%s*[\r\n]|%s+(?!%S)|%s+)"}},
      {"minicpm5", {R"(\p{N}{1,3})", words_text(R"(\p{N}+)")}},
      {"laguna", {kLinesText, words_text(R"(\p{N})")}},
      {"gemma4", {kLinesText}},
      {"sarvam-moe", {kLinesText}},
      {"tekken", {cased_text("", R"(\p{N})")}},
      {"gpt-4o", {cased_text("(?:" + kCi + ")?", R"(\p{N}{1,3})")}},
      {"bloom", {kUnstoppedText}},
      {"viking", {kUnstoppedText, R"(\p{N})"}},
      {"deepseek-llm",
       {R"([\r\n])", "%s?[" + kDeepseekLetters + "]+", R"(%s?[!-/:-~！-／：-～‘-‟　-。]+)", R"(%s+$)",
        kDeepseekEast, R"(\p{N}+)"}},
      {"deepseek-coder", {R"([\r\n])", R"(%s?\p{L}+)", R"(%s?\p{P}+)", kDeepseekEast, R"(\p{N})"}},
      {"deepseek-v3",
       {R"(\p{N}{1,3})", R"([一-龥\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)",
        R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
        R"(| ?[\p{P}\p{S}]+[\r\n]*|)" +
            kTail}},
      {"default", {R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Text, R"(\p{N}+)", R"([0-9][0-9][0-9])"}},
  };
  return kMap;
}

std::vector<std::string> cut_by_pcre(const std::vector<Pattern>& patterns, const std::string& text) {
  std::vector<std::string> pieces = {text};
  for (const Pattern& pattern : patterns) {
    std::vector<std::string> next;
    for (const std::string& piece : pieces) pattern.cut(piece, next);
    pieces = std::move(next);
  }
  if (text.empty()) pieces.clear();
  return pieces;
}

std::vector<std::string> cut_by_table(const PreTokenizer& row, const std::string& text) {
  std::vector<std::string> pieces;
  PieceCursor cursor(row, text);
  for (std::string_view piece; cursor.next(&piece);) pieces.emplace_back(piece);
  return pieces;
}

std::string utf8(char32_t c) {
  std::string out;
  base::utf8_append(out, c);
  return out;
}

bool is_scalar(char32_t c) { return c < 0xD800 || (c > 0xDFFF && c < 0x110000); }

// The table's class of a code point is what PCRE2 says of it.
bool agrees(char32_t c) {
  static const std::vector<std::pair<uint16_t, Pattern>> kClasses = [] {
    std::vector<std::pair<uint16_t, Pattern>> classes;
    classes.emplace_back(kLetter, Pattern(R"(\p{L})"));
    classes.emplace_back(kNumber, Pattern(R"(\p{N})"));
    classes.emplace_back(kPunctuation, Pattern(R"(\p{P})"));
    classes.emplace_back(kSymbol, Pattern(R"(\p{S})"));
    classes.emplace_back(kMark, Pattern(R"(\p{M})"));
    classes.emplace_back(kUpper, Pattern(R"([\p{Lu}\p{Lt}])"));
    classes.emplace_back(kLower, Pattern(R"(\p{Ll})"));
    classes.emplace_back(kUncased, Pattern(R"([\p{Lm}\p{Lo}\p{M}])"));
    return classes;
  }();
  const uint16_t bits = UnicodeClasses::table().of(c);
  for (const auto& [bit, pattern] : kClasses) {
    if (pattern.matches(utf8(c)) != ((bits & bit) != 0)) return false;
  }
  return true;
}

TEST(UnicodeClasses, ArePcresExceptWhatUnicode15Added) {
  size_t differing = 0;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (!is_scalar(c) || agrees(c)) continue;
    ++differing;
    // New in 15: PCRE2 says unassigned, the table says something.
    EXPECT_NE(UnicodeClasses::table().of(c), 0) << static_cast<uint32_t>(c);
    ASSERT_LT(differing, 4600u);  // Unicode 15 added 4,489 characters
  }
  EXPECT_GT(differing, 4000u);
}

TEST(UnicodeClasses, WhiteSpaceIsTheProperty) {
  const Pattern space(ws("^%s$"));
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (!is_scalar(c)) continue;
    EXPECT_EQ((UnicodeClasses::table().of(c) & kSpace) != 0, space.matches(utf8(c)) || c == '\n')
        << static_cast<uint32_t>(c);
  }
}

// Texts that meet the rules' borders: blanks, newlines, apostrophes, digits, marks, and anything else now and
// then.
rc::Gen<std::string> texts() {
  static const std::vector<std::string> kParts = {
      " ",      " ",   "  ", "\n",   "\r\n",  "\r",     "\t",     "\u00A0", "\u3000", "'",      "'s",
      "'LL",    "'Re", "'d", "a",    "B",     "é",      "中",     "ſ",      "1",      "23",     "4567",
      "²",      "٣",   "Ⅷ",  ".",    ",",     "...",    "$",      "+",      "`",      "|",      "<",
      "=",      "~",   "^",  "_",    "/",     "\u0301", "\u0E31", "\u200D", "👩",     "\u0000", "\u00AD",
      "\uE000", "€",   "«",  "word", "Don't", "x=1;",   "\u1680", "\u0903", "𝟘",      "𐍈",      "ǅ",
      "ʰ",      "Σ",   "ß",  "ー",   "あ",    "한",     "龥",     "龦",     "Ա",      "ա",      "ა",
      "।",      "،",   "…",  "”",    "！",    "Ａ",     "(",      ")",      "\u2028", "XMLa",   "'S"};
  const auto any = rc::gen::map(rc::gen::inRange<uint32_t>(0, 0x110000), [](uint32_t c) {
    return is_scalar(c) && agrees(c) ? utf8(c) : std::string("z");
  });
  const auto part = rc::gen::weightedOneOf<std::string>({{12, rc::gen::elementOf(kParts)}, {1, any}});
  return rc::gen::map(rc::gen::container<std::vector<std::string>>(part),
                      [](const std::vector<std::string>& parts) {
                        std::string text;
                        for (const std::string& p : parts) text += p;
                        return text;
                      });
}

class PreTokenizerGroup : public testing::TestWithParam<std::string> {};

TEST_P(PreTokenizerGroup, CutsAsTheExpressions) {
  const PreTokenizer* row = find_pre_tokenizer(GetParam());
  ASSERT_NE(row, nullptr);
  std::vector<Pattern> patterns;
  for (const std::string& expression : expressions().at(GetParam())) patterns.emplace_back(ws(expression));
  const bool ok = rc::check([&] {
    for (int i = 0; i < 20; ++i) {
      const std::string text = *texts();
      RC_ASSERT(cut_by_table(*row, text) == cut_by_pcre(patterns, text));
    }
  });
  EXPECT_TRUE(ok);
}

TEST_P(PreTokenizerGroup, KeepsEveryByteOfInvalidText) {
  const PreTokenizer* row = find_pre_tokenizer(GetParam());
  ASSERT_NE(row, nullptr);
  const bool ok = rc::check([&](const std::string& bytes) {
    std::string joined;
    for (const std::string& piece : cut_by_table(*row, bytes)) {
      RC_ASSERT(!piece.empty());
      joined += piece;
    }
    RC_ASSERT(joined == bytes);
  });
  EXPECT_TRUE(ok);
}

INSTANTIATE_TEST_SUITE_P(Rows, PreTokenizerGroup, testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const auto& [name, patterns] : expressions()) names.push_back(name);
                           return names;
                         }()),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(PreTokenizer, EveryRowIsTestedAndEveryNameIsOne) {
  std::map<std::string_view, int> names;
  for (const PreTokenizer& row : pre_tokenizers()) {
    EXPECT_TRUE(expressions().count(std::string(row.names[0])) || row.names[0] == "llama3") << row.names[0];
    for (const std::string_view name : row.names) {
      EXPECT_EQ(++names[name], 1) << name;
      EXPECT_EQ(find_pre_tokenizer(name), &row);
    }
  }
  EXPECT_EQ(find_pre_tokenizer("kimi-k2"), nullptr);
  EXPECT_EQ(find_pre_tokenizer(""), nullptr);
}

TEST(PreTokenizer, ExamplesByEye) {
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(cut_by_table(*find_pre_tokenizer("smollm"), "I'm 123  ok\n\n x"),
            (Pieces{"I", "'m", " ", "1", "2", "3", " ", " ok", "\n\n", " x"}));
  EXPECT_EQ(cut_by_table(*find_pre_tokenizer("llama-bpe"), "I'M 1234  ok\n\n x.\n"),
            (Pieces{"I", "'M", " ", "123", "4", " ", " ok", "\n\n", " x", ".\n"}));
  EXPECT_EQ(cut_by_table(*find_pre_tokenizer("tekken"), "HTMLParser it's aBC/\n/x 12"),
            (Pieces{"HTMLParser", " it", "'s", " a", "BC", "/\n/", "x", " ", "1", "2"}));
  EXPECT_EQ(cut_by_table(*find_pre_tokenizer("gpt-4o"), "HTMLParser it's 1234"),
            (Pieces{"HTMLParser", " it's", " ", "123", "4"}));
  EXPECT_EQ(cut_by_table(*find_pre_tokenizer("deepseek-v3"), "漢字かなabc. f(x)=$y 12345"),
            (Pieces{"漢字かな", "abc", ".", " f", "(x", ")=$", "y", " ", "123", "45"}));
  EXPECT_EQ(cut_by_table(*find_pre_tokenizer("deepseek-coder"), "a  b\r\n1 \t"),
            (Pieces{"a", " ", " b", "\r", "\n", "1", " \t"}));
  EXPECT_EQ(cut_by_table(*find_pre_tokenizer("bloom"), "a, b  (c)"),
            (Pieces{"a", ",", " b", "  (", "c", ")"}));
}

}  // namespace
}  // namespace tally::text
