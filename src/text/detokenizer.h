#pragma once
// Feed ids, get only complete UTF-8; stop strings are found here, across token borders.
// Threads: one at a time. Source: tokenizer reference §6 (streaming assembler and stop automaton).

#include "base/ids.h"
#include "text/tokenizer.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tally::text {

inline constexpr size_t kStopStringsMax = 16;
inline constexpr size_t kStopBytesMax = 256;

struct DetokenizerOptions {
  std::vector<std::string>
      stop;  // at most kStopStringsMax, each 1..kStopBytesMax bytes; valid UTF-8 or it never matches
  bool include_stop = false;         // the stop string itself is emitted too
  bool skip_special = true;          // control tokens give no text
  std::vector<TokenId> spelled;      // but for these: markers that somebody reads
  std::vector<TokenId> prompt_tail;  // the last ids of the prompt: a character they begin is not leaked
  bool prompt_is_empty = false;      // the leading space of an SPM continuation is dropped
};

class Detokenizer {
 public:
  // Requires (checked): limits of the options; `tokenizer` outlives this.
  Detokenizer(const Tokenizer& tokenizer, const DetokenizerOptions& options);
  Detokenizer(Detokenizer&&) noexcept;
  Detokenizer& operator=(Detokenizer&&) noexcept;
  ~Detokenizer();

  // Text that can be shown after this token (may be empty). After a stop string matched, nothing comes any
  // more.
  std::string feed(TokenId id);
  // What was held back: call once at the end.
  std::string finish();

  // Index into options.stop of the string that matched.
  std::optional<size_t> stopped() const;
  // Tokens fed so far that contributed to text up to the last emitted byte (for logprobs after a stop).
  size_t tokens_shown() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tally::text
