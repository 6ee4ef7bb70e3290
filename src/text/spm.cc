#include "text/spm.h"

#include "base/utf8.h"
#include "text/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace tally::text {
namespace {

constexpr std::string_view kSpace = "\xE2\x96\x81";
constexpr char32_t kSpaceCodePoint = 0x2581;

// Stands for any byte that is no character of its own.
constexpr char32_t kBroken = 0x110000;

struct CodePoint {
  char32_t value;
  uint8_t length;
};

CodePoint code_point_at(std::string_view text, size_t at) {
  const auto byte = static_cast<uint8_t>(text[at]);
  if (byte < 0x80) return {byte, 1};
  const base::Utf8Step step = base::utf8_step(text.substr(at));
  if (step.kind != base::Utf8Step::kValid) return {kBroken, 1};
  return {step.code_point, step.length};
}

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

SpmEncoder::SpmEncoder(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {
  byte_ids_.fill(kNoToken);
  for (uint32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.kind(id) == TokenKind::kByte) {
      byte_ids_[static_cast<uint8_t>(vocabulary.raw_bytes(id)[0])] = id;
    }
    if (vocabulary.matches_text(id)) text_bytes_max_ = std::max(text_bytes_max_, vocabulary.piece(id).size());
  }
}

base::Result<SpmEncoder> SpmEncoder::build(const Vocabulary& vocabulary) {
  if (vocabulary.scores().size() != vocabulary.size()) {
    return base::Error{base::ErrorCode::kBadData,
                       "tokenizer.ggml.scores is missing; the model \"llama\" needs it"};
  }
  SpmEncoder encoder(vocabulary);
  encoder.rank_scores();
  encoder.collect_pairs();
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

size_t SpmEncoder::pair_hash(char32_t first, char32_t second) { return hash_mix(first, second) % kPairBits; }

void SpmEncoder::collect_pairs() {
  for (uint32_t id = 0; id < vocabulary_->size(); ++id) {
    if (!vocabulary_->matches_text(id)) continue;
    const std::string_view piece = vocabulary_->piece(id);
    CodePoint before = code_point_at(piece, 0);
    for (size_t i = before.length; i < piece.size();) {
      const CodePoint c = code_point_at(piece, i);
      pairs_[pair_hash(before.value, c.value)] = true;
      before = c;
      i += c.length;
    }
  }
  // part_end does not cut runs of spaces into single ones.
  pairs_[pair_hash(kSpaceCodePoint, kSpaceCodePoint)] = true;
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
  out.reserve(text.size() + (spaces + 1) * kSpace.size());
  if (space_prefix) out += kSpace;
  for (const char c : text) {
    if (c == ' ') {
      out += kSpace;
    } else {
      out += c;
    }
  }
  return out;
}

size_t SpmEncoder::part_end(std::string_view spelled, size_t at) const {
  for (size_t i = at + 1; i < spelled.size(); ++i) {
    i = spelled.find(kSpace, i);
    if (i == std::string_view::npos) break;
    // The code point before: step back over at most three continuation bytes.
    size_t before = i - 1;
    while (before > at && i - before < 4 && (static_cast<uint8_t>(spelled[before]) & 0xC0) == 0x80) --before;
    const CodePoint c = code_point_at(spelled.substr(0, i), before);
    const char32_t value = before + c.length == i ? c.value : kBroken;
    if (!may_join(value, kSpaceCodePoint)) return i;
  }
  return spelled.size();
}

uint32_t SpmEncoder::token(std::string_view text) const {
  if (text.size() > text_bytes_max_) return kNoToken;
  const auto id = vocabulary_->find(text);
  return id && vocabulary_->matches_text(*id) ? *id : kNoToken;
}

bool SpmEncoder::encode_part(std::string_view part, MergeScratch& scratch, std::vector<TokenId>& ids) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  for (size_t i = 0; i < part.size();) {
    const CodePoint c = code_point_at(part, i);
    symbols.push_back({kNoToken, static_cast<uint32_t>(i), c.length});
    i += c.length;
  }
  merge_symbols(
      scratch,
      [&](const Symbol& left, const Symbol& right) -> MergeCandidate {
        const uint32_t id = token(part.substr(left.begin, left.size + right.size));
        return id == kNoToken ? MergeCandidate{} : MergeCandidate{ranks_[id], id};
      },
      [&](const Symbol& left, const Symbol& right) {
        return may_join(code_point_at(part, left.begin).value, code_point_at(part, right.begin).value);
      });
  const auto emit = [&](uint32_t id) { ids.push_back(TokenId{static_cast<int32_t>(id)}); };
  for (const Symbol& symbol : symbols) {
    const std::string_view text = part.substr(symbol.begin, symbol.size);
    const uint32_t id = symbol.id != kNoToken ? symbol.id : token(text);
    if (id != kNoToken) {
      emit(id);
      continue;
    }
    for (const char byte : text) {
      const uint32_t byte_id = byte_ids_[static_cast<uint8_t>(byte)];
      const auto unknown = vocabulary_->role(SpecialRole::kUnknown);
      if (byte_id == kNoToken && !unknown) return false;
      emit(byte_id != kNoToken ? byte_id : *unknown);
    }
  }
  return true;
}

size_t SpmEncoder::memory_bytes() const {
  return sizeof(*this) + pairs_.capacity() / 8 + ranks_.capacity() * sizeof(uint32_t);
}

}  // namespace tally::text
