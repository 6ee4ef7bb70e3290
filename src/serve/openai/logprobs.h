#pragma once
// The log-probabilities of tokens as JSON, in OpenAI's two shapes.

#include "serve/openai/writer.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tally::serve::openai {

class PromptPart;

struct LogprobEntry {
  std::string token;                               // bytes, control tokens spelled out
  std::optional<float> logprob;                    // nothing: the first token of a prompt
  std::vector<std::pair<std::string, float>> top;  // best first
  size_t text_offset = 0;                          // code points from the start of the text
};

void write_chat_logprobs(Writer& w, const std::vector<LogprobEntry>& entries);
// `prompt`, or null: its echoed tokens come first.
void write_completion_logprobs(Writer& w, const PromptPart* prompt, const std::vector<LogprobEntry>& entries);

}  // namespace tally::serve::openai
