#pragma once
// One choice of an answer: a sequence and what has become of its tokens. Private to the answer files.

#include "serve/answer.h"
#include "serve/code_points.h"

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tally::serve {

struct Answer::Choice {
  explicit Choice(text::Detokenizer d) : detokenizer(std::move(d)) {}

  openai::ChoiceStyle style;
  std::shared_ptr<engine::Stream> stream;
  text::Detokenizer detokenizer;
  std::optional<text::OutputParser> parser;  // nothing: all text is content
  size_t prompt_index = 0;
  uint32_t prompt_tokens = 0;
  uint32_t tokens_max = 0;                 // where the engine ends it with kLength
  openai::Piece piece;                     // of the step at hand; of everything when not streaming
  std::vector<openai::LogprobEntry> held;  // logprobs of tokens whose text is held back
  CodePoints offset;
  size_t tokens = 0, tokens_sent = 0, logprobs_released = 0;
  size_t reasoning_tokens = 0;  // after which the thoughts went on
  size_t calls = 0;             // begun
  bool calls_ended = false;     // the one that was asked for is complete
  double logprob_sum = 0;       // of the tokens, if the engine tells it
  int64_t last_token_us = 0;
  bool last_is_end = false, first_sent = false, stop_matched = false, ended = false;
};

}  // namespace tally::serve
