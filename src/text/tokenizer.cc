#include "text/tokenizer.h"

#include "base/check.h"
#include "base/log.h"
#include "base/utf8.h"
#include "text/hash.h"
#include "text/tokenizer_state.h"

#include <fmt/format.h>

namespace tally::text {

using base::Error;
using base::ErrorCode;
using base::Result;

namespace {

// Offsets within a piece are 32-bit; spelling a space takes three bytes.
constexpr size_t kTextBytesMax = 1u << 30;

TokenId token_id(uint32_t id) { return TokenId{static_cast<int32_t>(id)}; }

bool is_ascii_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

// phi-3 keeps the whitespace behind these.
bool eats_space_right(std::string_view piece) {
  return piece != "<unk>" && piece != "<s>" && piece != "<|endoftext|>";
}

}  // namespace

// One encode call: the ids so far, and what the text before asks of the text to come.
class EncodeRun {
 public:
  explicit EncodeRun(const Tokenizer::State& state) : state_(state) {}

  // False: a byte has no token and there is no unknown token.
  bool add(std::string_view text, bool parse_special) {
    ids_.reserve(ids_.size() + text.size() / 3);
    size_t at = 0;
    while (const auto match = state_.specials.find(text, at, parse_special)) {
      if (!add_raw(text.substr(at, match->begin - at))) return false;
      ids_.push_back(token_id(match->id));
      after_special_ = true;
      eat_space_ = state_.rules.eat_space_right && eats_space_right(state_.vocabulary.piece(match->id));
      at = match->end;
    }
    return add_raw(text.substr(at));
  }

  std::vector<TokenId>& ids() { return ids_; }

 private:
  bool add_raw(std::string_view text) {
    if (eat_space_) {
      while (!text.empty() && is_ascii_space(text.front())) text.remove_prefix(1);
    }
    if (text.empty()) return true;
    const bool prefix = after_special_ && state_.rules.space_prefix;
    after_special_ = eat_space_ = false;
    return state_.bpe ? add_bpe(text) : add_spm(text, prefix);
  }

  bool add_bpe(std::string_view text) {
    const bool raw_utf8 = state_.pre_tokenizer->raw_utf8;
    std::string spelled;
    if (raw_utf8) {
      spelled = SpmEncoder::spell(text, false, false);
      text = spelled;
    }
    PieceCursor cursor(*state_.pre_tokenizer, text);
    for (std::string_view piece; cursor.next(&piece);) {
      for (size_t at = 0; at < piece.size();) {
        const size_t end = raw_utf8 ? state_.bpe->part_end(piece, at) : piece.size();
        const std::string_view part = piece.substr(at, end - at);
        if (!cached(part, [&] { return state_.bpe->encode_piece(part, scratch_, ids_); })) return false;
        at = end;
      }
    }
    return true;
  }

  bool add_spm(std::string_view text, bool prefix) {
    const std::string spelled = SpmEncoder::spell(text, prefix, state_.rules.squeeze_spaces);
    for (size_t at = 0; at < spelled.size();) {
      const size_t end = state_.spm->part_end(spelled, at);
      const std::string_view part = std::string_view(spelled).substr(at, end - at);
      if (!cached(part, [&] { return state_.spm->encode_part(part, scratch_, ids_); })) return false;
      at = end;
    }
    return true;
  }

  template <class Encode>
  bool cached(std::string_view piece, const Encode& encode) {
    if (piece.size() > WordCache::kBytesMax) return encode();
    const uint64_t hash = hash_bytes(piece);
    if (state_.cache->find(piece, hash, ids_)) return true;
    const size_t before = ids_.size();
    if (!encode()) return false;
    state_.cache->insert(piece, hash, std::span(ids_).subspan(before));
    return true;
  }

  const Tokenizer::State& state_;
  std::vector<TokenId> ids_;
  MergeScratch scratch_;
  bool after_special_ = true;  // the start counts as one
  bool eat_space_ = false;
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, bool add_special,
                                               bool parse_special) const {
  if (text.size() > kTextBytesMax) {
    return Error{ErrorCode::kBadData,
                 fmt::format("text of {} bytes; at most {} are allowed", text.size(), kTextBytesMax)};
  }
  EncodeRun run(*state_);
  if (add_special && state_->rules.add_bos) run.ids().push_back(*bos());
  if (!run.add(text, parse_special)) {
    return Error{ErrorCode::kBadData,
                 "the text has a byte that is no token, and tokenizer.ggml.unknown_token_id is missing"};
  }
  if (add_special && state_->rules.add_eos) run.ids().push_back(*eos());
  const bool doubled = add_special && state_->rules.add_bos && run.ids().size() > 1 && run.ids()[1] == *bos();
  if (doubled && !state_->double_bos_logged.exchange(true)) {
    base::log_warn("a text that begins with the BOS token got a second one");
  }
  return std::move(run.ids());
}

Result<std::vector<TokenId>> Tokenizer::encode_spans(std::span<const TextSpan> spans,
                                                     bool add_special) const {
  size_t bytes = 0;
  for (const TextSpan& span : spans) bytes += span.text.size();
  if (bytes > kTextBytesMax) {
    return Error{ErrorCode::kBadData,
                 fmt::format("text of {} bytes; at most {} are allowed", bytes, kTextBytesMax)};
  }
  EncodeRun run(*state_);
  for (const TextSpan& span : spans) {
    if (!run.add(span.text, span.trusted)) {
      return Error{ErrorCode::kBadData,
                   "the text has a byte that is no token, and tokenizer.ggml.unknown_token_id is missing"};
    }
  }
  std::vector<TokenId>& ids = run.ids();
  const bool has_bos = !ids.empty() && bos() && ids.front() == *bos();
  if (add_special && state_->rules.add_bos && !has_bos) ids.insert(ids.begin(), *bos());
  if (add_special && state_->rules.add_eos) ids.push_back(*eos());
  return std::move(ids);
}

size_t Tokenizer::vocab_size() const { return state_->vocabulary.size(); }

std::string_view Tokenizer::bytes(TokenId id) const {
  const TokenKind k = kind(id);
  const bool hidden = k == TokenKind::kControl || k == TokenKind::kUnknown || k == TokenKind::kUnused;
  return hidden ? std::string_view() : bytes_with_special(id);
}

std::string_view Tokenizer::bytes_with_special(TokenId id) const {
  TALLY_CHECK(contains(raw(id)), "token id outside the vocabulary", raw(id));
  return state_->vocabulary.raw_bytes(static_cast<uint32_t>(raw(id)));
}

TokenKind Tokenizer::kind(TokenId id) const {
  TALLY_CHECK(contains(raw(id)), "token id outside the vocabulary", raw(id));
  return state_->vocabulary.kind(static_cast<uint32_t>(raw(id)));
}

std::string_view Tokenizer::piece(TokenId id) const {
  TALLY_CHECK(contains(raw(id)), "token id outside the vocabulary", raw(id));
  return state_->vocabulary.piece(static_cast<uint32_t>(raw(id)));
}

std::optional<TokenId> Tokenizer::special_token(std::string_view text) const {
  if (text.size() > kSpecialBytesMax) return std::nullopt;
  const auto match = state_->specials.find(text, 0, true);
  const bool is_all = match && match->begin == 0 && match->end == text.size();
  return is_all ? std::optional(token_id(match->id)) : std::nullopt;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string out;
  bool drop_space = state_->rules.space_prefix;
  for (const TokenId id : ids) {
    std::string_view part = skip_special ? bytes(id) : bytes_with_special(id);
    if (part.empty()) continue;
    if (drop_space && part.front() == ' ') part.remove_prefix(1);
    drop_space = false;
    out += part;
  }
  return base::utf8_replace_invalid(out);
}

std::optional<TokenId> Tokenizer::bos() const {
  const auto id = state_->vocabulary.role(SpecialRole::kBos);
  return id ? std::optional(token_id(*id)) : std::nullopt;
}

std::optional<TokenId> Tokenizer::eos() const {
  const auto id = state_->vocabulary.role(SpecialRole::kEos);
  return id ? std::optional(token_id(*id)) : std::nullopt;
}

std::optional<TokenId> Tokenizer::unknown() const {
  const auto id = state_->vocabulary.role(SpecialRole::kUnknown);
  return id ? std::optional(token_id(*id)) : std::nullopt;
}

bool Tokenizer::adds_bos() const { return state_->rules.add_bos; }
bool Tokenizer::adds_eos() const { return state_->rules.add_eos; }
bool Tokenizer::adds_space_prefix() const { return state_->rules.space_prefix; }
std::span<const TokenId> Tokenizer::eog() const { return state_->vocabulary.eog(); }
std::span<const TokenId> Tokenizer::suppressed() const { return state_->vocabulary.suppressed(); }
std::string_view Tokenizer::model() const { return state_->model; }
std::string_view Tokenizer::pre_tokenizer() const { return state_->pre; }
std::span<const std::string> Tokenizer::warnings() const { return state_->warnings; }

std::optional<std::string_view> Tokenizer::chat_template() const {
  return state_->chat_template ? std::optional<std::string_view>(*state_->chat_template) : std::nullopt;
}

size_t Tokenizer::memory_bytes() const {
  const State& s = *state_;
  return sizeof(State) + s.vocabulary.memory_bytes() + s.specials.memory_bytes() + s.cache->memory_bytes() +
         (s.bpe ? s.bpe->memory_bytes() : 0) + (s.spm ? s.spm->memory_bytes() : 0) +
         (s.chat_template ? s.chat_template->capacity() : 0);
}

}  // namespace tally::text
