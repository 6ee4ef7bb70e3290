#pragma once
// Cut text into the pieces that byte-level BPE merges within. Which cuts a model wants is one row of a table,
// named by tokenizer.ggml.pre. A row is a list of steps; each step cuts every piece of the step before into
// its matches and the gaps between them.

#include "text/cut_step.h"

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tally::text {

inline constexpr size_t kCutStepsMax = 6;

struct PreTokenizer {
  std::string_view group;
  std::span<const std::string_view> names;  // values of tokenizer.ggml.pre
  std::array<CutStep, kCutStepsMax> steps;  // up to the first kNone
  bool ignore_merges = false;               // a piece that is a token is that token, whatever the merges say
  bool add_bos = false;                     // unless the file says otherwise
  // Pieces are spelled in UTF-8 with U+2581 for a space, as in SPM, not in the byte map.
  bool raw_utf8 = false;
  bool newline_runs_whole = false;  // a run of newlines that is a token is that token
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

  const UnicodeClasses& classes_;
  const PreTokenizer& row_;
  std::string_view text_;
  size_t steps_count_ = 0;
  size_t level_ = 0;
  std::array<Level, kCutStepsMax> levels_{};
};

}  // namespace tally::text
