#pragma once
// One expression of a pre-tokenizer, and where the piece that begins at some place ends. Written by hand:
// linear time, constant stack, one table lookup a character. (A regex engine that backtracks overflows its
// stack on a long run of letters.)

#include "text/unicode_classes.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tally::text {

// Notation: L letter, N number, P punctuation, S symbol, M mark; U = Lu Lt Lm Lo M, V = Ll Lm Lo M; " ?" an
// optional U+0020; C = 's|'t|'re|'ve|'m|'ll|'d, Ci = the same in any ASCII case;
// TAIL = \s*[\r\n]+ | \s+(?!\S) | \s+.
enum class CutKind : uint8_t {
  kNone,
  kRuns,              // [set]{1,run_max}, with \s? in front if `space_before`; run_max 0: [set]+
  kThreeAsciiDigits,  // [0-9][0-9][0-9]
  kPunctuationRuns,   // [P $ + < = > ^ ~ |]+, with a backtick too if `backtick`
  kTrailingSpace,     // \s+$
  kLines,             // [^\n]+ | \n+
  kUnstopped,         // " ?[^ \s bloom's stops ]+"
  kGpt2,              // C | ?L+ | ?N+ | ?[^\s L N]+ | \s+(?!\S)
  kWords,             // Ci | [^\r\n L N]?L+ | N{1,run_max} | ?[^\s L N]+[\r\n]* | TAIL
  kCasedWords,        // [^\r\n L N]?U*V+ | [^\r\n L N]?U+V* | N{1,run_max} | ?[^\s L N]+[\r\n/]* | TAIL; with
                      // (Ci)? after the first two if `contraction_after`
  kPunctuatedWords    // [!-/:-@[-`{-~][A-Za-z]+ | [^\r\n L P S]?[L M]+ | ?[P S]+[\r\n]* | TAIL
};

struct CutStep {
  CutKind kind = CutKind::kNone;
  uint16_t set = 0;     // kRuns: class bits, any of which is enough
  uint8_t run_max = 0;  // 0: no limit
  bool space_before = false;
  bool backtick = false;
  bool marks_are_letters = false;          // kWords: [L M]+ and ?[^\s L M N]+
  bool punctuation_takes_newlines = true;  // kWords
  bool contraction_after = false;
};

// End of the match that begins at `at`, or, if none does, of the gap up to the next one. The end of `text` is
// the end of the world. Requires at < text.size().
size_t piece_end(const CutStep& step, const UnicodeClasses& classes, std::string_view text, size_t at);

}  // namespace tally::text
