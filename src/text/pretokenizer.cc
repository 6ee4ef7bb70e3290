#include "text/pretokenizer.h"

#include <algorithm>

namespace tally::text {
namespace {

using Names = std::string_view;

constexpr std::array<Names, 16> kGpt2Names = {
    "gpt-2",  "phi-2",       "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "gigachat", "a.x-4.0",
    "mellum", "modern-bert", "exaone4", "mpt",     "olmo",       "jais",       "trillion", "granite-docling"};
constexpr std::array<Names, 8> kSmollmNames = {"smollm",    "starcoder", "refact",     "command-r",
                                               "codeshell", "exaone",    "minerva-7b", "mellum2"};
constexpr std::array<Names, 9> kLlama3Names = {"llama3",  "llama-v3", "llama-bpe", "falcon3",     "falcon-h1",
                                               "pixtral", "midm-2.0", "lfm2",      "jina-v5-nano"};
constexpr std::array<Names, 4> kLlama3PlainNames = {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"};
constexpr std::array<Names, 9> kQwen2Names = {"qwen2",   "deepseek-r1-qwen", "kormo",
                                              "f2llmv2", "megrez",           "stablelm2",
                                              "hunyuan", "solar-open",       "grok-2"};
constexpr std::array<Names, 1> kQwen35Names = {"qwen35"};
constexpr std::array<Names, 1> kFalconNames = {"falcon"};
constexpr std::array<Names, 1> kSeedCoderNames = {"seed-coder"};
constexpr std::array<Names, 3> kBailingNames = {"bailingmoe", "bailingmoe2", "llada-moe"};
constexpr std::array<Names, 1> kMinicpm5Names = {"minicpm5"};
constexpr std::array<Names, 1> kDefaultNames = {"default"};

constexpr CutStep kGpt2Step{.kind = CutKind::kGpt2};
constexpr CutStep digits(uint8_t max) { return {.kind = CutKind::kDigits, .digits_max = max}; }
constexpr CutStep words(uint8_t digits_max) { return {.kind = CutKind::kWords, .digits_max = digits_max}; }

// qwen2 in Hugging Face applies NFC first; GGUF does not record it and this table does not: ids of decomposed
// text differ. bailing's \s*[\r\n] ends where \s*[\r\n]+ does, so it is qwen2 under another name.
constexpr std::array<PreTokenizer, 11> kTable = {{
    {"gpt-2", kGpt2Names, {kGpt2Step}},
    {"smollm", kSmollmNames, {digits(1), kGpt2Step}},
    {"llama3", kLlama3Names, {words(3)}, true, true},
    {"llama3", kLlama3PlainNames, {words(3)}},
    {"qwen2", kQwen2Names, {words(1)}},
    {"qwen35", kQwen35Names, {CutStep{.kind = CutKind::kWords, .digits_max = 1, .marks_are_letters = true}}},
    {"falcon",
     kFalconNames,
     {CutStep{.kind = CutKind::kPunctuationRuns, .backtick = true}, kGpt2Step,
      CutStep{.kind = CutKind::kThreeAsciiDigits}}},
    {"seed-coder",
     kSeedCoderNames,
     {CutStep{.kind = CutKind::kWords, .digits_max = 1, .punctuation_takes_newlines = false}}},
    {"bailing", kBailingNames, {words(1)}},
    {"minicpm5", kMinicpm5Names, {digits(3), words(0)}, true},
    {"default",
     kDefaultNames,
     {CutStep{.kind = CutKind::kPunctuationRuns}, kGpt2Step, digits(0),
      CutStep{.kind = CutKind::kThreeAsciiDigits}}},
}};

// A text that is looked at from one place to another, with the end of the current piece as the end of the
// world.
class Scanner {
 public:
  Scanner(const UnicodeClasses& classes, std::string_view text) : classes_(classes), text_(text) {}

  size_t end() const { return text_.size(); }
  char byte(size_t at) const { return text_[at]; }
  Character at(size_t at) const { return character_at(classes_, text_, at); }

  // End of the run, from `at` on, of characters that have one of `bits` (or none of them, if !wanted).
  size_t run(size_t at, unsigned bits, bool wanted) const {
    while (at < text_.size()) {
      const Character c = this->at(at);
      if (((c.bits & bits) != 0) != wanted) break;
      at += c.length;
    }
    return at;
  }

  // End of at most `max` numbers (0: any count).
  size_t numbers(size_t at, size_t max) const {
    if (max == 0) return run(at, kNumber, true);
    for (size_t i = 0; i < max && at < text_.size(); ++i) {
      const Character c = this->at(at);
      if ((c.bits & kNumber) == 0) break;
      at += c.length;
    }
    return at;
  }

  // Bytes of a contraction after the apostrophe at `at`; 0 if there is none.
  size_t contraction(size_t at, bool any_case) const {
    const auto letter = [&](size_t i) -> char {
      if (i >= text_.size()) return 0;
      const char c = text_[i];
      return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    };
    const char a = letter(at + 1);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    const char b = letter(at + 2);
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
    return 0;
  }

  // End of the part that \s+(?!\S) | \s+ takes of a run of whitespace that begins at `at`.
  size_t spaces(size_t at) const {
    size_t last = at, stop = at;
    while (stop < text_.size()) {
      const Character c = this->at(stop);
      if ((c.bits & kSpace) == 0) break;
      last = stop;
      stop += c.length;
    }
    // The last one is left to join what follows, unless nothing follows or it is the only one.
    return stop == text_.size() || last == at ? stop : last;
  }

 private:
  const UnicodeClasses& classes_;
  std::string_view text_;
};

size_t gpt2_end(const Scanner& s, size_t at) {
  if (s.byte(at) == '\'') {
    if (const size_t n = s.contraction(at, false)) return at + n;
  }
  const size_t head = s.byte(at) == ' ' ? at + 1 : at;
  if (head < s.end()) {
    const unsigned bits = s.at(head).bits;
    if (bits & kLetter) return s.run(head, kLetter, true);
    if (bits & kNumber) return s.run(head, kNumber, true);
    if (!(bits & kSpace)) return s.run(head, kLetter | kNumber | kSpace, false);
  }
  return s.spaces(at);
}

// \s*[\r\n]+ : end after the last newline of the run of whitespace; `at` if it has none.
size_t newlines_end(const Scanner& s, size_t at) {
  size_t end = at;
  for (size_t i = at; i < s.end();) {
    const Character c = s.at(i);
    if ((c.bits & kSpace) == 0) break;
    i += c.length;
    if (c.bits & kNewline) end = i;
  }
  return end;
}

size_t words_end(const Scanner& s, size_t at, const CutStep& step) {
  if (s.byte(at) == '\'') {
    if (const size_t n = s.contraction(at, true)) return at + n;
  }
  const unsigned letters = step.marks_are_letters ? kLetter | kMark : unsigned{kLetter};
  const Character first = s.at(at);
  if (first.bits & letters) return s.run(at, letters, true);
  const size_t second = at + first.length;
  if ((first.bits & (kNumber | kNewline)) == 0 && second < s.end() && (s.at(second).bits & letters)) {
    return s.run(second, letters, true);
  }
  if (first.bits & kNumber) return s.numbers(at, step.digits_max);

  const unsigned not_punctuation = letters | kNumber | kSpace;
  size_t head = at;
  if (s.byte(at) == ' ' && second < s.end()) head = second;
  if ((s.at(head).bits & not_punctuation) == 0) {
    const size_t end = s.run(head, not_punctuation, false);
    return step.punctuation_takes_newlines ? s.run(end, kNewline, true) : end;
  }
  const size_t end = newlines_end(s, at);
  return end > at ? end : s.spaces(at);
}

bool is_cut_punctuation(const Scanner& s, size_t at, bool backtick) {
  const char c = s.byte(at);
  if (c == '$' || c == '+' || c == '<' || c == '=' || c == '>' || c == '^' || c == '~' || c == '|')
    return true;
  return (backtick && c == '`') || (s.at(at).bits & kPunctuation);
}

size_t punctuation_end(const Scanner& s, size_t at, bool backtick) {
  const bool inside = is_cut_punctuation(s, at, backtick);
  do {
    at += s.at(at).length;
  } while (at < s.end() && is_cut_punctuation(s, at, backtick) == inside);
  return at;
}

size_t three_digits_end(const Scanner& s, size_t at) {
  const auto three = [&](size_t i) {
    const auto digit = [&](size_t k) { return k < s.end() && s.byte(k) >= '0' && s.byte(k) <= '9'; };
    return digit(i) && digit(i + 1) && digit(i + 2);
  };
  if (three(at)) return at + 3;
  while (at < s.end() && !three(at)) ++at;
  return at;
}

}  // namespace

std::span<const PreTokenizer> pre_tokenizers() { return kTable; }

const PreTokenizer* find_pre_tokenizer(std::string_view name) {
  for (const PreTokenizer& row : kTable) {
    if (std::find(row.names.begin(), row.names.end(), name) != row.names.end()) return &row;
  }
  return nullptr;
}

PieceCursor::PieceCursor(const PreTokenizer& row, std::string_view text)
    : classes_(UnicodeClasses::table()), row_(row), text_(text) {
  while (steps_count_ < kCutStepsMax && row.steps[steps_count_].kind != CutKind::kNone) ++steps_count_;
  levels_[0] = {0, text.size()};
}

size_t PieceCursor::piece_end(const CutStep& step, size_t at, size_t end) const {
  const Scanner s(classes_, text_.substr(0, end));
  switch (step.kind) {
    case CutKind::kGpt2:
      return gpt2_end(s, at);
    case CutKind::kWords:
      return words_end(s, at, step);
    case CutKind::kDigits:
      return s.at(at).bits & kNumber ? s.numbers(at, step.digits_max) : s.run(at, kNumber, false);
    case CutKind::kThreeAsciiDigits:
      return three_digits_end(s, at);
    case CutKind::kPunctuationRuns:
      return punctuation_end(s, at, step.backtick);
    case CutKind::kNone:
      break;
  }
  return end;
}

bool PieceCursor::next(std::string_view* piece) {
  for (;;) {
    Level& level = levels_[level_];
    if (level.at == level.end) {
      if (level_ == 0) return false;
      --level_;
      continue;
    }
    const size_t begin = level.at;
    const size_t end = piece_end(row_.steps[level_], begin, level.end);
    level.at = end;
    if (level_ + 1 == steps_count_) {
      *piece = text_.substr(begin, end - begin);
      return true;
    }
    levels_[++level_] = {begin, end};
  }
}

}  // namespace tally::text
