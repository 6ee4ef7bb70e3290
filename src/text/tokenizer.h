#pragma once
// Text to ids and back, as the model file says: byte-level BPE, BPE on characters, and SentencePiece-BPE, the
// last two with byte fallback.
// Threads: const methods may be called from any thread.

#include "base/ids.h"
#include "base/result.h"
#include "gguf/gguf.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::text {

// One run of prompt text. In trusted text (written by a template) control tokens are recognised; in text of a
// user they are encoded as plain text. A border between spans is a split point.
struct TextSpan {
  std::string text;
  bool trusted = false;
  bool operator==(const TextSpan&) const = default;
};

enum class TokenKind : uint8_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

class Tokenizer {
 public:
  // Reads tokenizer.* of a model file; keeps nothing of it. Errors: kBadData, naming the key.
  static base::Result<Tokenizer> load(const gguf::File& file);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // add_special: BOS and EOS as the file says. parse_special: control tokens in `text` are recognised
  // (trusted text). Invalid UTF-8 is kept byte by byte. Errors: kBadData if a byte has no token and there is
  // no unknown token.
  base::Result<std::vector<TokenId>> encode(std::string_view text, bool add_special,
                                            bool parse_special) const;
  // As encode, span after span; BOS is added only if the text does not start with it.
  base::Result<std::vector<TokenId>> encode_spans(std::span<const TextSpan> spans, bool add_special) const;

  size_t vocab_size() const;
  bool contains(int64_t id) const { return id >= 0 && static_cast<uint64_t>(id) < vocab_size(); }

  // The bytes a token stands for in generated text: control, unknown and unused tokens give nothing,
  // user-defined ones their text. Requires (checked), here and below: contains(id).
  std::string_view bytes(TokenId id) const;
  // As bytes, with control and unknown tokens spelled out: for /detokenize and logprobs.
  std::string_view bytes_with_special(TokenId id) const;
  TokenKind kind(TokenId id) const;
  // The piece as the vocabulary spells it.
  std::string_view piece(TokenId id) const;
  // The control, unknown or user-defined token that trusted text of just these bytes is. Costs no more than
  // the longest of them, however long the text.
  std::optional<TokenId> special_token(std::string_view text) const;

  // Whole sequence to text: drops the one leading space that encode put before SPM text. Broken UTF-8 becomes
  // U+FFFD.
  std::string decode(std::span<const TokenId> ids, bool skip_special) const;

  std::optional<TokenId> bos() const;
  std::optional<TokenId> eos() const;
  std::optional<TokenId> unknown() const;
  bool adds_bos() const;
  bool adds_eos() const;
  // SPM: encode puts a space before text that is first or follows a special token, and decode drops the first
  // one.
  bool adds_space_prefix() const;
  // Ids that end a generation: eos, eot, eom and their kin, ascending.
  std::span<const TokenId> eog() const;
  // Ids that are never sampled (tokenizer.ggml.suppress_tokens), ascending.
  std::span<const TokenId> suppressed() const;

  std::string_view model() const;          // "gpt2", "llama", "gemma4"
  std::string_view pre_tokenizer() const;  // "smollm", …; empty for "llama", which has none
  std::optional<std::string_view> chat_template() const;
  // What was odd in the file, one line each (missing `pre`, dropped merges): for the model report.
  std::span<const std::string> warnings() const;
  // Bytes held, for the runtime account.
  size_t memory_bytes() const;

 private:
  friend class EncodeRun;
  struct State;
  static base::Result<Tokenizer> load_unlocated(const gguf::File& file);
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace tally::text
