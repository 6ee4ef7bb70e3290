#pragma once
// Cut text into the pieces that byte-level BPE merges within. Which cuts a model wants is one row of a table,
// named by tokenizer.ggml.pre. A row is a list of steps; each step cuts every piece of the step before into
// its matches and the gaps between them. The scanners are written by hand: linear time, constant stack, one
// table lookup a character. (A regex engine that backtracks overflows its stack on a long run of letters.)

#include "text/unicode_classes.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tally::text {

// Notation: L letter, N number, P punctuation, S symbol, M mark; " ?" an optional U+0020.
enum class CutKind : uint8_t {
  kNone,
  kDigits,            // N{1,digits_max}, digits_max 0: N+
  kThreeAsciiDigits,  // [0-9][0-9][0-9]
  kPunctuationRuns,   // [P $ + < = > ^ ~ |]+, with a backtick too if `backtick`
  kGpt2,              // 's|'t|'re|'ve|'m|'ll|'d | ?L+ | ?N+ | ?[^\s L N]+ | \s+(?!\S)
  kWords,  // the same contractions in any ASCII case | [^\r\n L N]?L+ | N{1,digits_max} | ?[^\s L N]+[\r\n]*
           // |
           // \s*[\r\n]+ | \s+(?!\S) | \s+
};

struct CutStep {
  CutKind kind = CutKind::kNone;
  uint8_t digits_max = 0;
  bool backtick = false;
  bool marks_are_letters = false;          // kWords: [L M]+ and ?[^\s L M N]+
  bool punctuation_takes_newlines = true;  // kWords
};

inline constexpr size_t kCutStepsMax = 4;

struct PreTokenizer {
  std::string_view group;
  std::span<const std::string_view> names;  // values of tokenizer.ggml.pre
  std::array<CutStep, kCutStepsMax> steps;  // up to the first kNone
  bool ignore_merges = false;               // a piece that is a token is that token, whatever the merges say
  bool add_bos = false;                     // unless the file says otherwise
};

// The row of a value of tokenizer.ggml.pre; nullptr if there is none.
const PreTokenizer* find_pre_tokenizer(std::string_view name);
std::span<const PreTokenizer> pre_tokenizers();

// Walks over the pieces of one text. The concatenation of all pieces is the text.
class PieceCursor {
 public:
  // `row` and the bytes of `text` outlive the cursor.
  PieceCursor(const PreTokenizer& row, std::string_view text);
  // False at the end.
  bool next(std::string_view* piece);

 private:
  struct Level {
    size_t at, end;
  };
  size_t piece_end(const CutStep& step, size_t at, size_t end) const;

  const UnicodeClasses& classes_;
  const PreTokenizer& row_;
  std::string_view text_;
  size_t steps_count_ = 0;
  size_t level_ = 0;
  std::array<Level, kCutStepsMax> levels_{};
};

}  // namespace tally::text
