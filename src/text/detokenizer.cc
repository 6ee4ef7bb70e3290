#include "text/detokenizer.h"

#include "base/check.h"
#include "text/stream_assembler.h"

#include <algorithm>

namespace tally::text {

struct Detokenizer::State {
  State(const Tokenizer& t, const DetokenizerOptions& options)
      : tokenizer(&t),
        assembler(options.stop, options.include_stop),
        skip_special(options.skip_special),
        spelled(options.spelled),
        drop_space(options.prompt_is_empty && t.adds_space_prefix()) {}

  std::string_view text_of(TokenId id) const {
    const bool skips = skip_special && std::find(spelled.begin(), spelled.end(), id) == spelled.end();
    return skips ? tokenizer->bytes(id) : tokenizer->bytes_with_special(id);
  }

  const Tokenizer* tokenizer;
  StreamAssembler assembler;
  bool skip_special;
  std::vector<TokenId> spelled;  // a few
  bool drop_space;               // of the first token that has text
};

Detokenizer::Detokenizer(const Tokenizer& tokenizer, const DetokenizerOptions& options) {
  TALLY_CHECK(options.stop.size() <= kStopStringsMax, "too many stop strings", options.stop.size());
  for (const std::string& stop : options.stop) {
    TALLY_CHECK(!stop.empty() && stop.size() <= kStopBytesMax, "length of a stop string", stop.size());
  }
  state_ = std::make_unique<State>(tokenizer, options);
  std::string prompt_bytes;
  for (const TokenId id : options.prompt_tail) prompt_bytes += state_->text_of(id);
  state_->assembler.set_context(prompt_bytes);
}

Detokenizer::Detokenizer(Detokenizer&&) noexcept = default;
Detokenizer& Detokenizer::operator=(Detokenizer&&) noexcept = default;
Detokenizer::~Detokenizer() = default;

std::string Detokenizer::feed(TokenId id) {
  std::string_view bytes = state_->text_of(id);
  if (state_->drop_space && !bytes.empty()) {
    state_->drop_space = false;
    if (bytes.front() == ' ') bytes.remove_prefix(1);
  }
  return state_->assembler.feed(bytes);
}

std::string Detokenizer::finish() { return state_->assembler.finish(); }
std::optional<size_t> Detokenizer::stopped() const { return state_->assembler.stopped(); }
size_t Detokenizer::tokens_shown() const { return state_->assembler.tokens_shown(); }

}  // namespace tally::text
