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
  while (slots_[slot].left != kNoToken && (slots_[slot].left != left || slots_[slot].right != right)) {
    slot = (slot + 1) & mask;
  }
  return slot;
}

void MergeTable::add(uint32_t left, uint32_t right, MergeCandidate candidate) {
  Slot& slot = slots_[slot_of(left, right)];
  if (slot.left == kNoToken) slot = {left, right, candidate};
}

MergeCandidate MergeTable::find(uint32_t left, uint32_t right) const {
  // A symbol without a token never merges; it must not meet the mark of an empty slot either.
  if (left == kNoToken) return {};
  return slots_[slot_of(left, right)].candidate;
}

namespace {

size_t byte_pair(char first, char second) {
  return size_t{static_cast<uint8_t>(first)} << 8 | static_cast<uint8_t>(second);
}

}  // namespace

BpeEncoder::BpeEncoder(const Vocabulary& vocabulary, size_t merges_count, bool ignore_merges)
    : vocabulary_(&vocabulary), ignore_merges_(ignore_merges), table_(merges_count) {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    const auto id = vocabulary.find(byte_level_spelling({&c, 1}));
    byte_ids_[byte] = id && vocabulary.matches_text(*id) ? *id : kNoToken;
  }
}

Result<BpeEncoder> BpeEncoder::build(const Vocabulary& vocabulary, std::span<const std::string_view> merges,
                                     bool ignore_merges) {
  if (merges.size() > kMergesMax) {
    return Error{ErrorCode::kBadData,
                 fmt::format("tokenizer.ggml.merges has {} entries; at most {} are allowed", merges.size(),
                             kMergesMax)};
  }
  BpeEncoder encoder(vocabulary, merges.size(), ignore_merges);
  const auto token = [&](std::string_view piece) {
    const auto id = vocabulary.find(piece);
    return id && vocabulary.matches_text(*id) ? *id : kNoToken;
  };
  std::string whole;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view entry = merges[rank];
    const size_t blank = entry.find(' ', 1);
    if (blank == std::string_view::npos || blank + 1 == entry.size()) {
      return Error{
          ErrorCode::kBadData,
          fmt::format("tokenizer.ggml.merges[{}] is \"{}\"; two pieces with a blank between them are wanted",
                      rank, base::escape_for_log(entry, 64))};
    }
    const std::string_view left = entry.substr(0, blank), right = entry.substr(blank + 1);
    whole.assign(left).append(right);
    const uint32_t left_id = token(left), right_id = token(right), merged = token(whole);
    if (left_id == kNoToken || right_id == kNoToken || merged == kNoToken) {
      ++encoder.dropped_merges_;
      continue;
    }
    encoder.table_.add(left_id, right_id, {static_cast<uint32_t>(rank), merged});
    const std::string_view bytes = vocabulary.raw_bytes(merged);
    for (size_t i = 1; i < bytes.size(); ++i) encoder.byte_pairs_.set(byte_pair(bytes[i - 1], bytes[i]));
  }
  return encoder;
}

bool BpeEncoder::encode_piece(std::string_view piece, MergeScratch& scratch,
                              std::vector<TokenId>& ids) const {
  const auto emit = [&](uint32_t id) { ids.push_back(TokenId{static_cast<int32_t>(id)}); };
  if (ignore_merges_ && piece.size() <= vocabulary_->piece_bytes_max()) {
    const auto id = vocabulary_->find(byte_level_spelling(piece));
    if (id && vocabulary_->matches_text(*id)) {
      emit(*id);
      return true;
    }
  }
  auto& symbols = scratch.symbols;
  symbols.resize(piece.size());
  for (size_t i = 0; i < piece.size(); ++i) {
    symbols[i] = {byte_ids_[static_cast<uint8_t>(piece[i])], static_cast<uint32_t>(i), 1};
  }
  merge_symbols(
      scratch, [this](const Symbol& left, const Symbol& right) { return table_.find(left.id, right.id); },
      [&](const Symbol& left, const Symbol& right) {
        return byte_pairs_.test(byte_pair(piece[left.begin], piece[right.begin]));
      });
  for (const Symbol& symbol : symbols) {
    if (symbol.id != kNoToken) {
      emit(symbol.id);
    } else if (const auto unknown = vocabulary_->role(SpecialRole::kUnknown)) {
      emit(*unknown);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace tally::text
