#pragma once
// Why the engine would not, or did not, take a request, in the client's words.

#include "engine/engine.h"
#include "serve/errors.h"
#include "serve/openai/requests.h"

#include <algorithm>
#include <cstdint>
#include <optional>

namespace tally::serve {

struct Length {
  uint64_t prompt_tokens = 0, max_tokens = 0;  // max_tokens 0: not given, or
  bool prompt_only = false;

  // One token at least, where any is generated.
  uint64_t completion_tokens() const { return prompt_only ? 0 : std::max<uint64_t>(max_tokens, 1); }
};

// context_length_exceeded, if prompt and completion cannot fit.
std::optional<ApiError> judge_length(const engine::Info& info, const Length& length);
// invalid_value, if one prompt's sequences can never run at once.
std::optional<ApiError> judge_choices(const engine::Info& info, const openai::Options& options);
// invalid_value, if an answer would tell too many log-probabilities of its prompts, of so many tokens
// together.
std::optional<ApiError> judge_scores(const openai::Options& options, bool is_chat, uint64_t prompt_tokens);
ApiError refusal(const engine::Refused& refused, const engine::Info& info, const Length& length);
// Of what was taken and ended without an answer.
ApiError failure(engine::Finish finish);

}  // namespace tally::serve
