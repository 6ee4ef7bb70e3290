#pragma once
// Bytes of tokens in, text out: only whole characters, nothing of a stop string, nothing of a character that
// the prompt began. Knows no tokenizer; Detokenizer feeds it.

#include "text/stop_automaton.h"

#include <cstddef>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tally::text {

class StreamAssembler {
 public:
  StreamAssembler(std::span<const std::string> stops, bool include_stop);

  // The prompt ended with these bytes. Call before feed.
  void set_context(std::string_view prompt_bytes);
  // Bytes of the next token (empty for one without text); text that can be shown now.
  std::string feed(std::string_view bytes);
  // What was held back. Call once.
  std::string finish();

  std::optional<size_t> stopped() const { return stopped_; }
  // Tokens fed up to the one that holds the last byte given out.
  size_t tokens_shown() const { return tokens_shown_; }

 private:
  // Bytes of held_ that end a token's share.
  struct Share {
    size_t bytes;
    size_t token;  // counted from 1
  };
  // One whole character whose last byte came with `token`. False once a stop string is complete.
  bool take(std::string_view character, size_t token, std::string& out);
  void give_out(size_t bytes, std::string& out);

  StopAutomaton automaton_;
  const bool include_stop_;
  std::string pending_;             // begins a character, at most 3 bytes between calls
  bool pending_is_prompt_ = false;  // its first byte is the prompt's: it will not be shown
  size_t pending_token_ = 0;
  std::string held_;  // whole characters that may begin a stop string
  std::deque<Share> shares_;
  size_t tokens_fed_ = 0, tokens_shown_ = 0;
  std::optional<size_t> stopped_;
};

}  // namespace tally::text
