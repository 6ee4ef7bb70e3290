#pragma once
// What an answer tells of its prompt's tokens: echoed in front of a choice's own, or as prompt_logprobs. Read
// from the engine's scores as it is written, so that nothing is held as often as there are choices.

#include "engine/engine.h"
#include "serve/openai/logprobs.h"
#include "text/tokenizer.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace tally::serve::openai {

// What of an echoed token's entry is read: a shape with a list for each of them asks for one at a time.
enum class EchoPart : uint8_t { kToken, kLogprob, kTop, kOffset };

class PromptPart {
 public:
  struct Wanted {
    int echoed = -1;  // top logprobs of echoed tokens; -1: none are told
    int listed = -1;  // the same, as prompt_logprobs
  };
  // Requires: `ids` and `tokenizer` outlive this; `stream` has a score of every token but the first.
  PromptPart(std::span<const TokenId> ids, const text::Tokenizer& tokenizer,
             std::shared_ptr<const engine::Stream> stream, Wanted wanted)
      : ids_(ids), tokenizer_(tokenizer), stream_(std::move(stream)), wanted_(wanted) {}

  // Each echoed token in turn, its entry filled as far as `part` takes; none if they are not told. kTop is
  // the best ones, with the token itself and its log-probability.
  void each_echoed(EchoPart part, const std::function<void(const LogprobEntry&)>& visit) const;
  // vLLM's list over all tokens, if it is wanted: null, then {"<id>": {logprob, rank, decoded_token}}.
  bool is_listed() const { return wanted_.listed >= 0; }
  void write_list(Writer& w) const;

 private:
  sample::Score score_of(size_t position) const;
  void fill_scores(EchoPart part, size_t position, LogprobEntry& entry) const;

  const std::span<const TokenId> ids_;
  const text::Tokenizer& tokenizer_;
  const std::shared_ptr<const engine::Stream> stream_;
  const Wanted wanted_;
};

}  // namespace tally::serve::openai
