#include "serve/refusal.h"

#include <fmt/format.h>

#include <algorithm>

namespace tally::serve {
namespace {

constexpr std::string_view kAdvice = "Please reduce the length of the prompt or of the completion.";

// In this wording: gateways classify errors by it.
ApiError too_long(const engine::Info& info, const Length& length) {
  const uint64_t completion = length.completion_tokens();
  return {
      .code = Code::kContextLength,
      .message = fmt::format(
          "This model's maximum context length is {} tokens. However, you requested {} tokens ({} in the "
          "prompt, {} in the completion). {}",
          info.max_model_len, length.prompt_tokens + completion, length.prompt_tokens, completion, kAdvice)};
}

ApiError too_many_choices(uint64_t asked, uint64_t at_once) {
  return {
      .code = Code::kInvalidValue,
      .message = fmt::format(
          "The request needs {} sequences of one prompt to run at once, this server runs {} (--max-seqs, and "
          "at most --step-tokens).",
          asked, at_once),
      .param = "n"};
}

}  // namespace

std::optional<ApiError> judge_choices(const engine::Info& info, const openai::Options& options) {
  if (options.choices.prompt_only || options.choices.best_of <= info.max_seqs) return std::nullopt;
  ApiError error = too_many_choices(options.choices.best_of, info.max_seqs);
  if (options.choices.n <= info.max_seqs) error.param = "best_of";
  return error;
}

std::optional<ApiError> judge_length(const engine::Info& info, const Length& length) {
  if (length.prompt_tokens + length.completion_tokens() <= info.max_model_len) return std::nullopt;
  return too_long(info, length);
}

std::optional<ApiError> judge_scores(const openai::Options& options, bool is_chat, uint64_t prompt_tokens) {
  const openai::Choices& choices = options.choices;
  const int listed = choices.prompt_logprobs + 1;
  const int echoed = choices.echo ? options.params.logprobs + 1 : 0;
  const uint64_t told_times = is_chat ? 1 : choices.n, each = static_cast<uint64_t>(listed + echoed);
  const uint64_t told = prompt_tokens * told_times * each;
  if (told <= openai::kPromptScoresMax) return std::nullopt;
  return ApiError{.code = Code::kInvalidValue,
                  .message = fmt::format(
                      "The answer would tell {} log-probabilities of prompt tokens ({} tokens, {} times, "
                      "{} each), and may tell {}.",
                      told, prompt_tokens, told_times, each, openai::kPromptScoresMax),
                  .param = listed > 0 ? "prompt_logprobs" : "logprobs"};
}

ApiError refusal(const engine::Refused& refused, const engine::Info& info, const Length& length) {
  switch (refused.why) {
    case engine::Refusal::kContextLength:
      return too_long(info, length);
    case engine::Refusal::kPoolTooSmall:
      return {
          .code = Code::kContextLength,
          .message = fmt::format(
              "This model's maximum context length is {} tokens. However, your request needs {} KV blocks, "
              "the pool has {}. {}",
              info.max_model_len, refused.needed, refused.available, kAdvice)};
    case engine::Refusal::kTooManyChoices:
      return too_many_choices(refused.needed, refused.available);
    case engine::Refusal::kAnswerTooLarge:
      return {.code = Code::kInvalidValue,
              .message = fmt::format("The answer may come to {} bytes before it is read, and this server "
                                     "keeps {} for all answers. They "
                                     "grow with max_tokens (without it: up to the context), n, best_of, "
                                     "logprobs, prompt_logprobs and the "
                                     "number of prompts.",
                                     refused.needed, refused.available),
              .param = "max_tokens"};
    case engine::Refusal::kAnswersFull:
      return {.code = Code::kOverloaded,
              .message = fmt::format(
                  "Answers that are not read yet hold the room for them: {} bytes are needed, {} are "
                  "left. Please try again later.",
                  refused.needed, refused.available),
              .retry_after_s = std::max(refused.retry_after_s, 1u)};
    case engine::Refusal::kStopping:
      return {.code = Code::kShuttingDown,
              .message = "The server is shutting down.",
              .retry_after_s = std::max(refused.retry_after_s, 1u)};
    case engine::Refusal::kQueueFull:
      break;
  }
  return {.code = Code::kOverloaded,
          .message = "The queue is full. Please try again later.",
          .retry_after_s = std::max(refused.retry_after_s, 1u)};
}

ApiError failure(engine::Finish finish) {
  switch (finish) {
    case engine::Finish::kDeadline:
      return {Code::kDeadline, "The deadline of the request has passed."};
    case engine::Finish::kNonFinite:
      return {Code::kNonFinite, "The model produced logits that are not finite."};
    case engine::Finish::kDeadEnd:
      return {Code::kDeadEnd, "The constraint of the answer left no token that could come next."};
    case engine::Finish::kShutdown:
      return {.code = Code::kShuttingDown, .message = "The server is shutting down.", .retry_after_s = 5};
    default:
      return {Code::kInternal, "The request failed inside the server."};
  }
}

}  // namespace tally::serve
