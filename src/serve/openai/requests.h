#pragma once
// Bodies to plain requests: every field's type, range and combination is judged here, by one validator for
// all routes. What is not built yet is refused by name, never ignored.

#include "base/ids.h"
#include "engine/engine.h"
#include "sample/constraint.h"
#include "sample/params.h"
#include "serve/errors.h"
#include "serve/openai/tools.h"
#include "text/chat.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tally::serve::openai {

inline constexpr size_t kMessagesMax = 1024, kPartsMax = 256, kPromptsMax = 64;
inline constexpr size_t kStopMax = 16, kStopBytesMax = 256;
inline constexpr uint32_t kChoicesMax = 16;                      // n, best_of, beam width
inline constexpr uint32_t kSequencesMax = 256;                   // prompts x n
inline constexpr uint64_t kPromptScoresMax = uint64_t{1} << 20;  // log-probabilities told of prompts
inline constexpr uint64_t kEchoBytesMax = uint64_t{16} << 20;  // of prompts in an answer, once for each choice
inline constexpr float kLengthPenaltyMax = 5;  // keeps length^penalty finite in both directions

// Of each prompt.
struct Choices {
  uint32_t n = 1;        // told
  uint32_t best_of = 1;  // sequences run for them, at least n: sampled ones, or beams
  std::optional<engine::BeamSearch> beams;
  bool echo = false;             // the prompt is told in front of each
  int32_t prompt_logprobs = -1;  // told of the prompt's tokens; -1: none
  bool prompt_only = false;      // with echo: nothing is generated
};

// What the answer must be like, and the field that says so.
struct Constrained {
  sample::ConstraintSpec spec;
  std::string param;
};

// What chat and text completions have in common.
struct Options {
  std::string model;
  sample::Params params;  // seed: as given, or 0
  bool has_seed = false;
  uint32_t max_tokens = 0;  // 0: until the context is full
  Choices choices;
  std::optional<Constrained> constraint;
  int32_t priority = 0;    // lower goes first
  std::string cache_salt;  // prefixes are shared inside one
  std::vector<std::string> stop;
  bool stream = false, include_usage = false, include_tally = false;
};

struct ChatRequest {
  Options options;
  text::Value messages;  // contents are strings, arguments of calls are objects
  ToolUse tool_use;
  bool add_generation_prompt = true;
  text::ValueObject template_kwargs;
};

// One prompt: text, or ids taken as they are.
struct Prompt {
  std::string text = {};
  std::vector<TokenId> ids = {};
  bool is_ids = false;
};

struct CompletionRequest {
  Options options;
  std::vector<Prompt> prompts;
};

struct TokenizeRequest {
  std::string model;  // empty: not given
  std::string prompt;
  bool add_special_tokens = true;
};

struct DetokenizeRequest {
  std::string model;
  std::vector<TokenId> tokens;
};

// Each: nothing, or the first thing wrong. `vocab_size` bounds ids.
std::optional<ApiError> parse_chat(std::string_view body, size_t vocab_size, ChatRequest& out);
std::optional<ApiError> parse_completion(std::string_view body, size_t vocab_size, CompletionRequest& out);
std::optional<ApiError> parse_tokenize(std::string_view body, TokenizeRequest& out);
std::optional<ApiError> parse_detokenize(std::string_view body, size_t vocab_size, DetokenizeRequest& out);

}  // namespace tally::serve::openai
