#pragma once
// Why the engine would not, or did not, take a request, in the client's words.

#include "engine/engine.h"
#include "serve/errors.h"
#include "serve/openai/requests.h"

#include <cstdint>
#include <optional>

namespace tally::serve {

struct Length {
  uint64_t prompt_tokens = 0, max_tokens = 0;  // max_tokens 0: not given
};

// context_length_exceeded, if prompt and completion cannot fit: at least one token must.
std::optional<ApiError> judge_length(const engine::Info& info, const Length& length);
// invalid_value, if one prompt's sequences can never run at once.
std::optional<ApiError> judge_choices(const engine::Info& info, const openai::Options& options);
ApiError refusal(const engine::Refused& refused, const engine::Info& info, const Length& length);
// Of what was taken and ended without an answer.
ApiError failure(engine::Finish finish);

}  // namespace tally::serve
