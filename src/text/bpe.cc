#include "text/bpe.h"

#include "base/check.h"
#include "base/utf8.h"
#include "text/hash.h"

#include <fmt/format.h>

#include <bit>

namespace tally::text {

using base::Error;
using base::ErrorCode;
using base::Result;

MergeTable::MergeTable(size_t entries_max) : slots_(std::bit_ceil(entries_max * 2 + 2)) {}

size_t MergeTable::slot_of(uint32_t left, uint32_t right) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_mix(left, right) & mask;
  while (slots_[slot].rank != kNoRule && (slots_[slot].left != left || slots_[slot].right != right)) {
    slot = (slot + 1) & mask;
  }
  return slot;
}

void MergeTable::add(uint32_t left, uint32_t right, uint32_t rank) {
  Slot& slot = slots_[slot_of(left, right)];
  if (slot.rank == kNoRule) slot = {left, right, rank};
}

namespace {

TokenId token_id(uint32_t id) { return TokenId{static_cast<int32_t>(id)}; }

}  // namespace

// Symbols are bytes at first. The value of one is the byte.
struct BpeEncoder::ByteRules {
  const BpeEncoder& encoder;
  std::string_view piece;

  Single single(size_t at) const {
    const auto byte = static_cast<uint8_t>(piece[at]);
    const uint32_t id = encoder.byte_ids_[byte];
    return {id != kNoToken ? id : kCharacterSymbol + kLooseByte + byte, 1, byte};
  }
  bool may_join(char32_t left, char32_t right) const { return encoder.byte_pairs_[left << 8 | right]; }
  uint32_t find(uint32_t left, uint32_t right) const { return encoder.table_.find(left, right); }
  static uint32_t rank(uint32_t rule) { return rule; }
  uint32_t merged(uint32_t rule) const { return encoder.merged_[rule]; }
};

// Symbols are characters at first.
struct BpeEncoder::CharacterRules {
  const BpeEncoder& encoder;
  std::string_view piece;

  Single single(size_t at) const {
    const CodePoint c = code_point_at(piece, at);
    const uint32_t id = encoder.token(piece.substr(at, c.length));
    return {id != kNoToken ? id : kCharacterSymbol + c.value, c.length, c.value};
  }
  bool may_join(char32_t left, char32_t right) const { return encoder.pairs_->may_join(left, right); }
  uint32_t find(uint32_t left, uint32_t right) const { return encoder.table_.find(left, right); }
  static uint32_t rank(uint32_t rule) { return rule; }
  uint32_t merged(uint32_t rule) const { return encoder.merged_[rule]; }
};

BpeEncoder::BpeEncoder(const Vocabulary& vocabulary, size_t merges_count, const BpeOptions& options)
    : vocabulary_(&vocabulary), options_(options), table_(merges_count), merged_(merges_count, kNoToken) {
  byte_ids_.fill(kNoToken);
  if (options.raw_utf8) {
    pairs_.emplace();
    pairs_->add(kSpelledSpaceCodePoint, kSpelledSpaceCodePoint);
    for (uint32_t id = 0; id < vocabulary.size(); ++id) {
      if (vocabulary.kind(id) != TokenKind::kByte) continue;
      byte_ids_[static_cast<uint8_t>(vocabulary.raw_bytes(id)[0])] = id;
    }
    return;
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    byte_ids_[byte] = token(byte_level_spelling({&c, 1}));
  }
}

uint32_t BpeEncoder::token(std::string_view piece) const {
  if (piece.size() > vocabulary_->piece_bytes_max()) return kNoToken;
  const auto id = vocabulary_->find(piece);
  return id && vocabulary_->matches_text(*id) ? *id : kNoToken;
}

Result<BpeEncoder> BpeEncoder::build(const Vocabulary& vocabulary, std::span<const std::string_view> merges,
                                     const BpeOptions& options) {
  if (merges.size() > kMergesMax) {
    return Error{ErrorCode::kBadData,
                 fmt::format("tokenizer.ggml.merges has {} entries; at most {} are allowed", merges.size(),
                             kMergesMax)};
  }
  BpeEncoder encoder(vocabulary, merges.size(), options);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    TALLY_TRY_VOID(encoder.take_merge(rank, merges[rank]));
  }
  return encoder;
}

Result<void> BpeEncoder::take_merge(size_t rank, std::string_view entry) {
  const size_t blank = entry.find(' ', 1);
  if (blank == std::string_view::npos || blank + 1 == entry.size()) {
    return Error{
        ErrorCode::kBadData,
        fmt::format("tokenizer.ggml.merges[{}] is \"{}\"; two pieces with a blank between them are wanted",
                    rank, base::escape_for_log(entry, 64))};
  }
  const std::string_view left = entry.substr(0, blank), right = entry.substr(blank + 1);
  const uint32_t left_id = token(left), right_id = token(right);
  const uint32_t merged = token(std::string(left).append(right));
  if (left_id == kNoToken || right_id == kNoToken || merged == kNoToken) {
    ++dropped_merges_;
    return {};
  }
  table_.add(left_id, right_id, static_cast<uint32_t>(rank));
  merged_[rank] = merged;
  if (options_.raw_utf8) {
    pairs_->add(vocabulary_->piece(merged));
    return {};
  }
  const std::string_view bytes = vocabulary_->raw_bytes(merged);
  for (size_t i = 1; i < bytes.size(); ++i) {
    byte_pairs_.set(size_t{static_cast<uint8_t>(bytes[i - 1])} << 8 | static_cast<uint8_t>(bytes[i]));
  }
  return {};
}

bool BpeEncoder::emit_bytes(std::string_view bytes, std::vector<TokenId>& ids) const {
  for (const char byte : bytes) {
    const uint32_t id = byte_ids_[static_cast<uint8_t>(byte)];
    const auto unknown = vocabulary_->role(SpecialRole::kUnknown);
    if (id == kNoToken && !unknown) return false;
    ids.push_back(token_id(id != kNoToken ? id : *unknown));
  }
  return true;
}

bool BpeEncoder::encode_piece(std::string_view piece, MergeScratch& scratch,
                              std::vector<TokenId>& ids) const {
  const bool whole = options_.ignore_merges || (options_.newline_runs_whole && piece.starts_with('\n'));
  if (whole && piece.size() <= vocabulary_->piece_bytes_max()) {
    const uint32_t id = options_.raw_utf8 ? token(piece) : token(byte_level_spelling(piece));
    if (id != kNoToken) {
      ids.push_back(token_id(id));
      return true;
    }
  }
  const auto emit = [&](uint32_t symbol) {
    if (symbol >= kCharacterSymbol) return emit_bytes(character_bytes(symbol - kCharacterSymbol), ids);
    ids.push_back(token_id(symbol));
    return true;
  };
  if (options_.raw_utf8) return merge_text(piece.size(), scratch, CharacterRules{*this, piece}, emit);
  return merge_text(piece.size(), scratch, ByteRules{*this, piece}, emit);
}

size_t BpeEncoder::memory_bytes() const {
  return sizeof(*this) + table_.memory_bytes() + merged_.capacity() * sizeof(uint32_t) +
         (pairs_ ? pairs_->memory_bytes() : 0);
}

}  // namespace tally::text
