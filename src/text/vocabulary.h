#pragma once
// The pieces of a tokenizer and what the file says about them: kinds, bytes, scores, special ids. Checked
// once, constant after. The pieces are copied into two arenas, so the file may be closed.

#include "base/ids.h"
#include "base/result.h"
#include "text/tokenizer.h"

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tally::text {

// Ids that a file gives by role, in the order of kSpecialRoleKeys.
enum class SpecialRole : uint8_t {
  kBos,
  kEos,
  kEot,
  kEom,
  kUnknown,
  kPadding,
  kSeparator,
  kMask,
  kFimPre,
  kFimSuf,
  kFimMid,
  kFimPad,
  kFimRep,
  kFimSep
};
inline constexpr size_t kSpecialRoleCount = 14;
// tokenizer.ggml.<this>_token_id ("seperator" is how the format spells it).
inline constexpr std::array<std::string_view, kSpecialRoleCount> kSpecialRoleKeys = {
    "bos",  "eos",     "eot",     "eom",     "unknown", "padding", "seperator",
    "mask", "fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"};

// What the file says, unchecked. Views point into the file.
struct VocabularyFields {
  bool byte_level = true;  // pieces are spelled in the GPT-2 byte map; otherwise SPM spelling
  std::vector<std::string_view> tokens;
  std::vector<int64_t> kinds;  // empty: all normal
  std::vector<float> scores;   // empty if the model needs none
  std::array<std::optional<uint64_t>, kSpecialRoleCount> roles;
  std::vector<int64_t> suppressed;
};

inline constexpr size_t kVocabularyMax = 1u << 22;

// Piece text to id. Keeps no text of its own.
class PieceIndex {
 public:
  // Errors: kBadData on a piece that occurs twice.
  static base::Result<PieceIndex> build(std::string_view arena, std::span<const uint32_t> offsets);
  std::optional<uint32_t> find(std::string_view arena, std::span<const uint32_t> offsets,
                               std::string_view piece) const;
  size_t memory_bytes() const { return slots_.capacity() * sizeof(Slot); }

 private:
  struct Slot {
    uint32_t tag = 0;
    uint32_t id_plus_1 = 0;  // 0: empty
  };
  std::vector<Slot> slots_;  // a power of two
};

class Vocabulary {
 public:
  // Errors: kBadData, naming the key and the entry.
  static base::Result<Vocabulary> build(const VocabularyFields& fields);

  size_t size() const { return kinds_.size(); }
  std::string_view piece(uint32_t id) const { return slice(pieces_, piece_offsets_, id); }
  // Bytes in generated text, control and unknown tokens included (see Tokenizer::bytes for the hidden ones).
  std::string_view raw_bytes(uint32_t id) const { return slice(bytes_, bytes_offsets_, id); }
  TokenKind kind(uint32_t id) const { return kinds_[id]; }
  // Text that a user wrote may become such a token.
  bool matches_text(uint32_t id) const {
    return kinds_[id] == TokenKind::kNormal || kinds_[id] == TokenKind::kUserDefined;
  }
  std::optional<uint32_t> find(std::string_view piece) const {
    return index_.find(pieces_, piece_offsets_, piece);
  }
  std::optional<uint32_t> role(SpecialRole role) const { return roles_[static_cast<size_t>(role)]; }
  std::span<const float> scores() const { return scores_; }
  size_t piece_bytes_max() const { return piece_bytes_max_; }
  std::span<const TokenId> eog() const { return eog_; }
  std::span<const TokenId> suppressed() const { return suppressed_; }
  size_t memory_bytes() const;

 private:
  static std::string_view slice(const std::string& arena, const std::vector<uint32_t>& offsets, uint32_t id) {
    return std::string_view(arena).substr(offsets[id], offsets[id + 1] - offsets[id]);
  }
  base::Result<void> take_pieces(const VocabularyFields& fields);
  base::Result<void> take_kinds(const VocabularyFields& fields);
  base::Result<void> take_bytes(bool byte_level);
  base::Result<void> take_roles(const VocabularyFields& fields);
  void mark_rendered_tokens();
  void collect_eog();

  std::string pieces_, bytes_;
  std::vector<uint32_t> piece_offsets_, bytes_offsets_;  // [size + 1]
  std::vector<TokenKind> kinds_;
  std::vector<float> scores_;
  PieceIndex index_;
  std::array<std::optional<uint32_t>, kSpecialRoleCount> roles_;
  std::vector<TokenId> eog_, suppressed_;
  size_t piece_bytes_max_ = 0;
};

// The GPT-2 byte map. Spelling of one byte, and its inverse for a whole piece; nullopt if a code point is
// outside the map.
std::string byte_level_spelling(std::string_view bytes);
std::optional<std::string> byte_level_bytes(std::string_view piece);
// The byte of "<0xXX>" with upper-case digits.
std::optional<uint8_t> byte_token_value(std::string_view piece);

}  // namespace tally::text
