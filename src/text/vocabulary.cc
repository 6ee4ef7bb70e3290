#include "text/vocabulary.h"

#include "base/utf8.h"
#include "text/hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace tally::text {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

Error bad(std::string message) { return {ErrorCode::kBadData, std::move(message)}; }

// Printable code points stand for themselves, the other 68 bytes for U+0100 and up, in ascending order.
bool stands_for_itself(unsigned byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
}

struct ByteMap {
  std::array<char32_t, 256> code_points{};
  std::array<int16_t, 0x144> bytes{};  // -1: not in the map
};

constexpr char32_t kByteMapEnd = 0x144;

ByteMap make_byte_map() {
  ByteMap map;
  map.bytes.fill(-1);
  char32_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char32_t c = stands_for_itself(byte) ? char32_t{byte} : next++;
    map.code_points[byte] = c;
    map.bytes[c] = static_cast<int16_t>(byte);
  }
  return map;
}

const ByteMap& byte_map() {
  static const ByteMap map = make_byte_map();
  return map;
}

constexpr std::string_view kSpmSpace = "\xE2\x96\x81";  // U+2581

std::string spm_bytes(std::string_view piece) {
  std::string out;
  for (size_t i = 0; i < piece.size();) {
    if (piece.substr(i, kSpmSpace.size()) == kSpmSpace) {
      out += ' ';
      i += kSpmSpace.size();
    } else {
      out += piece[i++];
    }
  }
  return out;
}

// Texts of tokens that end a generation, whatever role the file gives them.
constexpr std::array<std::string_view, 22> kEogTexts = {"<|eot_id|>",
                                                        "<|im_end|>",
                                                        "<|end|>",
                                                        "<|return|>",
                                                        "<|call|>",
                                                        "<|calls|>",
                                                        "<|flush|>",
                                                        "<end_of_turn>",
                                                        "<|endoftext|>",
                                                        "</s>",
                                                        "<|eom_id|>",
                                                        "<EOT>",
                                                        "_<EOT>",
                                                        "[EOT]",
                                                        "[EOS]",
                                                        "<|end_of_text|>",
                                                        "<end_of_utterance>",
                                                        "<eos>",
                                                        "<turn|>",
                                                        "<|tool_response>",
                                                        "<\xEF\xBD\x9C"
                                                        "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                                                        "[e~["};

}  // namespace

std::string byte_level_spelling(std::string_view bytes) {
  std::string out;
  for (const char byte : bytes) base::utf8_append(out, byte_map().code_points[static_cast<uint8_t>(byte)]);
  return out;
}

std::optional<std::string> byte_level_bytes(std::string_view piece) {
  std::string out;
  for (size_t i = 0; i < piece.size();) {
    const base::Utf8Step step = base::utf8_step(piece.substr(i));
    if (step.kind != base::Utf8Step::kValid || step.code_point >= kByteMapEnd) return std::nullopt;
    const int16_t byte = byte_map().bytes[step.code_point];
    if (byte < 0) return std::nullopt;
    out += static_cast<char>(byte);
    i += step.length;
  }
  return out;
}

std::optional<uint8_t> byte_token_value(std::string_view piece) {
  if (piece.size() != 6 || piece.substr(0, 3) != "<0x" || piece[5] != '>') return std::nullopt;
  const auto digit = [](char c) -> int {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  const int high = digit(piece[3]), low = digit(piece[4]);
  if (high < 0 || low < 0) return std::nullopt;
  return static_cast<uint8_t>(high * 16 + low);
}

Result<PieceIndex> PieceIndex::build(std::string_view arena, std::span<const uint32_t> offsets) {
  PieceIndex index;
  const size_t count = offsets.size() - 1;
  index.slots_.resize(std::bit_ceil(count * 2));
  const size_t mask = index.slots_.size() - 1;
  for (uint32_t id = 0; id < count; ++id) {
    const std::string_view piece = arena.substr(offsets[id], offsets[id + 1] - offsets[id]);
    if (const auto before = index.find(arena, offsets, piece)) {
      return bad(
          fmt::format("tokenizer.ggml.tokens: \"{}\" is both token {} and token {}; each text may occur once",
                      base::escape_for_log(piece, 64), *before, id));
    }
    const uint64_t hash = hash_bytes(piece);
    size_t slot = hash & mask;
    while (index.slots_[slot].id_plus_1 != 0) slot = (slot + 1) & mask;
    index.slots_[slot] = {static_cast<uint32_t>(hash >> 32), id + 1};
  }
  return index;
}

std::optional<uint32_t> PieceIndex::find(std::string_view arena, std::span<const uint32_t> offsets,
                                         std::string_view piece) const {
  const size_t mask = slots_.size() - 1;
  const uint64_t hash = hash_bytes(piece);
  const auto tag = static_cast<uint32_t>(hash >> 32);
  for (size_t slot = hash & mask; slots_[slot].id_plus_1 != 0; slot = (slot + 1) & mask) {
    if (slots_[slot].tag != tag) continue;
    const uint32_t id = slots_[slot].id_plus_1 - 1;
    if (arena.substr(offsets[id], offsets[id + 1] - offsets[id]) == piece) return id;
  }
  return std::nullopt;
}

Result<Vocabulary> Vocabulary::build(const VocabularyFields& fields) {
  Vocabulary v;
  TALLY_TRY_VOID(v.take_pieces(fields));
  TALLY_TRY_VOID(v.take_kinds(fields));
  v.mark_rendered_tokens();
  TALLY_TRY_VOID(v.take_bytes(fields.byte_level));
  TALLY_TRY_VOID(v.take_roles(fields));
  v.collect_eog();
  return v;
}

Result<void> Vocabulary::take_pieces(const VocabularyFields& fields) {
  const size_t count = fields.tokens.size();
  if (count == 0 || count > kVocabularyMax) {
    return bad(
        fmt::format("tokenizer.ggml.tokens has {} entries; 1 to {} are allowed", count, kVocabularyMax));
  }
  piece_offsets_.reserve(count + 1);
  piece_offsets_.push_back(0);
  for (size_t id = 0; id < count; ++id) {
    const std::string_view text = fields.tokens[id];
    if (text.empty()) {
      pieces_ += fmt::format("[EMPTY_{}]", id);
    } else {
      pieces_ += text;
    }
    if (pieces_.size() > std::numeric_limits<uint32_t>::max()) {
      return bad("tokenizer.ggml.tokens holds more than 4 GiB of text");
    }
    piece_offsets_.push_back(static_cast<uint32_t>(pieces_.size()));
    piece_bytes_max_ = std::max<size_t>(piece_bytes_max_, piece_offsets_[id + 1] - piece_offsets_[id]);
  }
  pieces_.shrink_to_fit();
  TALLY_TRY(index_, PieceIndex::build(pieces_, piece_offsets_));
  return {};
}

Result<void> Vocabulary::take_kinds(const VocabularyFields& fields) {
  const size_t count = fields.tokens.size();
  kinds_.assign(count, TokenKind::kNormal);
  if (!fields.kinds.empty() && fields.kinds.size() != count) {
    return bad(
        fmt::format("tokenizer.ggml.token_type has {} entries, tokenizer.ggml.tokens {}; they must agree",
                    fields.kinds.size(), count));
  }
  for (size_t id = 0; id < fields.kinds.size(); ++id) {
    const int64_t kind = fields.kinds[id];
    if (kind < 1 || kind > 6) {
      return bad(fmt::format("tokenizer.ggml.token_type[{}] is {}; 1 to 6 are allowed", id, kind));
    }
    kinds_[id] = static_cast<TokenKind>(kind);
  }
  if (!fields.scores.empty() && fields.scores.size() != count) {
    return bad(fmt::format("tokenizer.ggml.scores has {} entries, tokenizer.ggml.tokens {}; they must agree",
                           fields.scores.size(), count));
  }
  for (size_t id = 0; id < fields.scores.size(); ++id) {
    if (std::isnan(fields.scores[id]))
      return bad(fmt::format("tokenizer.ggml.scores[{}] is not a number", id));
  }
  scores_ = fields.scores;
  return {};
}

// gpt-oss marks these as control tokens, but its answers are written with them.
void Vocabulary::mark_rendered_tokens() {
  if (!find("<|return|>") || !find("<|call|>")) return;
  for (const std::string_view text : {"<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"}) {
    if (const auto id = find(text)) kinds_[*id] = TokenKind::kUserDefined;
  }
}

Result<void> Vocabulary::take_bytes(bool byte_level) {
  bytes_offsets_.reserve(size() + 1);
  bytes_offsets_.push_back(0);
  bytes_.reserve(pieces_.size());
  for (uint32_t id = 0; id < size(); ++id) {
    const std::string_view text = piece(id);
    if (kinds_[id] == TokenKind::kByte) {
      const auto byte = byte_token_value(text);
      if (!byte) {
        return bad(fmt::format(
            "tokenizer.ggml.tokens[{}] is a byte token spelled \"{}\"; <0x00> to <0xFF> are allowed", id,
            base::escape_for_log(text, 64)));
      }
      bytes_ += static_cast<char>(*byte);
    } else if (kinds_[id] != TokenKind::kNormal) {
      bytes_ += text;
    } else if (byte_level) {
      const auto decoded = byte_level_bytes(text);
      bytes_ += decoded ? std::string_view(*decoded) : text;
    } else {
      bytes_ += spm_bytes(text);
    }
    bytes_offsets_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
  bytes_.shrink_to_fit();
  return {};
}

Result<void> Vocabulary::take_roles(const VocabularyFields& fields) {
  constexpr uint64_t kAbsent = 0xFFFFFFFF;
  for (size_t r = 0; r < kSpecialRoleCount; ++r) {
    const std::optional<uint64_t> id = fields.roles[r];
    if (!id || *id == kAbsent) continue;
    if (*id >= size()) {
      return bad(fmt::format("tokenizer.ggml.{}_token_id is {}; the vocabulary has {} tokens",
                             kSpecialRoleKeys[r], *id, size()));
    }
    roles_[r] = static_cast<uint32_t>(*id);
  }
  for (const int64_t id : fields.suppressed) {
    if (id < 0 || static_cast<uint64_t>(id) >= size()) {
      return bad(
          fmt::format("tokenizer.ggml.suppress_tokens holds {}; the vocabulary has {} tokens", id, size()));
    }
    suppressed_.push_back(TokenId{static_cast<int32_t>(id)});
  }
  std::sort(suppressed_.begin(), suppressed_.end());
  suppressed_.erase(std::unique(suppressed_.begin(), suppressed_.end()), suppressed_.end());
  return {};
}

void Vocabulary::collect_eog() {
  std::vector<uint32_t> ids;
  const auto add = [&](std::optional<uint32_t> id) {
    if (!id) return;
    // A placeholder for future use is not an end, whatever the file says of it.
    if (kinds_[*id] == TokenKind::kControl && piece(*id).find("unused") != std::string_view::npos) return;
    ids.push_back(*id);
  };
  for (const SpecialRole r : {SpecialRole::kEos, SpecialRole::kEot, SpecialRole::kEom, SpecialRole::kFimPad,
                              SpecialRole::kFimRep, SpecialRole::kFimSep}) {
    add(role(r));
  }
  const bool call_ends = (find("<|return|>") && find("<|call|>")) || (find("<|calls|>") && find("<|flush|>"));
  for (const std::string_view text : kEogTexts) {
    const auto id = find(text);
    if (!id) continue;
    if (text == "<|end|>" && call_ends) continue;
    // Gemma has the HTML tag </s> as a user-defined piece: text, not an end.
    if (text == "</s>" && (find("<|tool_response>") || kinds_[*id] == TokenKind::kUserDefined)) continue;
    add(id);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  for (const uint32_t id : ids) eog_.push_back(TokenId{static_cast<int32_t>(id)});
}

size_t Vocabulary::memory_bytes() const {
  return pieces_.capacity() + bytes_.capacity() +
         (piece_offsets_.capacity() + bytes_offsets_.capacity()) * sizeof(uint32_t) + kinds_.capacity() +
         scores_.capacity() * sizeof(float) + index_.memory_bytes() +
         (eog_.capacity() + suppressed_.capacity()) * sizeof(TokenId);
}

}  // namespace tally::text
