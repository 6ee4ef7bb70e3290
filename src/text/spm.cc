#include "text/spm.h"

#include "base/utf8.h"
#include "text/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace tally::text {
namespace {

std::string squeezed(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == ' ' && (out.empty() || out.back() == ' ')) continue;
    out += c;
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

}  // namespace

// Symbols are characters at first; a rule is the token it makes. Answers are remembered: to look for a token
// is to hash its text.
struct SpmEncoder::Rules {
  const SpmEncoder& encoder;
  std::string_view text;
  std::span<MergeScratch::Answer> answers;  // a power of two

  Single single(size_t at) const {
    const auto byte = static_cast<uint8_t>(text[at]);
    if (byte < 0x80) {
      const uint32_t id = encoder.ascii_ids_[byte];
      return {id != kNoToken ? id : kCharacterSymbol + byte, 1, byte};
    }
    const CodePoint c = code_point_at(text, at);
    const uint32_t id = encoder.token(text.substr(at, c.length));
    return {id != kNoToken ? id : kCharacterSymbol + c.value, c.length, c.value};
  }
  bool may_join(char32_t left, char32_t right) const { return encoder.pairs_.may_join(left, right); }
  uint32_t find(uint32_t left, uint32_t right) const {
    MergeScratch::Answer& answer = answers[hash_mix(left, right) & (answers.size() - 1)];
    if (answer.left != left || answer.right != right) answer = {left, right, encoder.joined(left, right)};
    return answer.rule;
  }
  uint32_t rank(uint32_t rule) const { return encoder.ranks_[rule]; }
  static uint32_t merged(uint32_t rule) { return rule; }
};

SpmEncoder::SpmEncoder(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {
  byte_ids_.fill(kNoToken);
  for (uint32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.kind(id) == TokenKind::kByte) {
      byte_ids_[static_cast<uint8_t>(vocabulary.raw_bytes(id)[0])] = id;
    }
    if (!vocabulary.matches_text(id)) continue;
    text_bytes_max_ = std::max(text_bytes_max_, vocabulary.piece(id).size());
    pairs_.add(vocabulary.piece(id));
  }
  // Runs of spaces are not cut into single ones.
  pairs_.add(kSpelledSpaceCodePoint, kSpelledSpaceCodePoint);
  for (unsigned c = 0; c < ascii_ids_.size(); ++c) {
    const char text = static_cast<char>(c);
    ascii_ids_[c] = token({&text, 1});
  }
}

base::Result<SpmEncoder> SpmEncoder::build(const Vocabulary& vocabulary) {
  if (vocabulary.scores().size() != vocabulary.size()) {
    return base::Error{base::ErrorCode::kBadData,
                       "tokenizer.ggml.scores is missing; the model \"llama\" needs it"};
  }
  SpmEncoder encoder(vocabulary);
  encoder.rank_scores();
  return encoder;
}

void SpmEncoder::rank_scores() {
  const std::span<const float> scores = vocabulary_->scores();
  std::vector<uint32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  ranks_.resize(scores.size());
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && scores[order[i]] != scores[order[i - 1]]) rank = static_cast<uint32_t>(i);
    ranks_[order[i]] = rank;
  }
}

std::string SpmEncoder::spell(std::string_view text, bool space_prefix, bool squeeze) {
  std::string kept;
  if (squeeze) {
    kept = squeezed(text);
    text = kept;
  }
  std::string out;
  if (text.empty()) return out;
  const auto spaces = static_cast<size_t>(std::count(text.begin(), text.end(), ' '));
  out.reserve(text.size() + spaces * (kSpelledSpace.size() - 1) + kSpelledSpace.size());
  if (space_prefix) out += kSpelledSpace;
  for (size_t at = 0; at < text.size();) {
    const size_t space = std::min(text.find(' ', at), text.size());
    out.append(text, at, space - at);
    if (space < text.size()) out += kSpelledSpace;
    at = space + 1;
  }
  return out;
}

uint32_t SpmEncoder::token(std::string_view text) const {
  if (text.size() > text_bytes_max_) return kNoToken;
  const auto id = vocabulary_->find(text);
  return id && vocabulary_->matches_text(*id) ? *id : kNoToken;
}

uint32_t SpmEncoder::joined(uint32_t left, uint32_t right) const {
  std::string text;
  for (const uint32_t symbol : {left, right}) {
    if (symbol >= kCharacterSymbol) {
      text += character_bytes(symbol - kCharacterSymbol);
    } else {
      text += vocabulary_->piece(symbol);
    }
  }
  return token(text);
}

bool SpmEncoder::encode_part(std::string_view part, MergeScratch& scratch, std::vector<TokenId>& ids) const {
  constexpr size_t kAnswers = 1u << 13;
  if (scratch.answers.empty()) scratch.answers.resize(kAnswers);
  const auto emit = [&](uint32_t symbol) {
    if (symbol < kCharacterSymbol) {
      ids.push_back(TokenId{static_cast<int32_t>(symbol)});
      return true;
    }
    const auto unknown = vocabulary_->role(SpecialRole::kUnknown);
    for (const char byte : character_bytes(symbol - kCharacterSymbol)) {
      const uint32_t id = byte_ids_[static_cast<uint8_t>(byte)];
      if (id == kNoToken && !unknown) return false;
      ids.push_back(TokenId{static_cast<int32_t>(id != kNoToken ? id : *unknown)});
    }
    return true;
  };
  return merge_text(part.size(), scratch, Rules{*this, part, scratch.answers}, emit);
}

size_t SpmEncoder::memory_bytes() const {
  return sizeof(*this) + pairs_.memory_bytes() + ranks_.capacity() * sizeof(uint32_t);
}

}  // namespace tally::text
