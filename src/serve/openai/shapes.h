#pragma once
// Answers as JSON: the shapes of OpenAI's API with the extensions of vLLM and llama.cpp that clients read.

#include "base/ids.h"
#include "engine/engine.h"
#include "serve/openai/logprobs.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tally::serve::openai {

// What all chunks of one answer share.
struct AnswerHead {
  bool chat = true;
  std::string id, model, fingerprint;
  int64_t created = 0;  // Unix seconds
};

// The stop string, or the id of the request's own, that ended the text; nothing for the model's end token.
using StopReason = std::variant<std::monostate, std::string, TokenId>;

// A tool call, or more of its arguments.
struct CallPiece {
  size_t index = 0;      // among the calls of the choice
  std::string id, name;  // empty: more of a call that was told of
  std::string arguments = {};
};

// What one choice has to say: in one event, or in all.
struct Piece {
  std::string text, reasoning;
  std::vector<CallPiece> calls;
  std::shared_ptr<const PromptPart> prompt;  // what is told of its tokens; null: nothing
  std::vector<LogprobEntry> logprobs;
  std::string_view finish_reason;  // empty: goes on
  StopReason stop_reason;

  bool says_something() const { return !text.empty() || !reasoning.empty() || !calls.empty(); }
  void clear_said() { text.clear(), reasoning.clear(), calls.clear(), prompt.reset(), logprobs.clear(); }
};

struct Usage {
  uint64_t prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;
  std::optional<uint64_t> reasoning_tokens;  // of the completion's; nothing: thoughts are not looked for
};

// What goes before [DONE], or at the end of the answer.
struct Closing {
  std::optional<Usage> usage;
  std::string timings, receipt;  // JSON, or empty
};

// `k` of the request: how many top logprobs; -1: none at all.
struct ChoiceStyle {
  size_t index = 0;
  int logprobs = -1;
};

// One event: `data: …\n\n`; two, where a call begins together with arguments: clients expect its name alone.
// is_first: the role rides on it. tally: (tokens, time_us), if asked for.
struct ChunkExtras {
  bool is_first = false;
  std::optional<std::pair<size_t, int64_t>> tally;
  const Closing* closing = nullptr;
};
std::string chunk_event(const AnswerHead& head, const ChoiceStyle& style, const Piece& piece,
                        const ChunkExtras& extras);
// The event with choices: [].
std::string closing_event(const AnswerHead& head, const Closing& closing);
// The answer that is not a stream; choices by index.
std::string whole_answer(const AnswerHead& head, int logprobs, const std::vector<Piece>& choices,
                         const Closing& closing);

// Where the time went; milliseconds, adding up to total_ms.
struct Account {
  engine::Receipt receipt;  // stages of the sequence that ended last, counts of all together
  uint64_t completion_tokens = 0;
  double tokenize_ms = 0, detokenize_ms = 0, send_ms = 0, total_ms = 0;
};
std::string timings_json(const Account& account);
std::string receipt_json(const Account& account);

std::string models_json(const std::string& id, int64_t created, uint32_t max_model_len, bool as_list);

}  // namespace tally::serve::openai
