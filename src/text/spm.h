#pragma once
// SentencePiece-BPE: code points merged by the scores of the pieces they make, bytes where no piece fits.

#include "base/ids.h"
#include "base/result.h"
#include "text/character_pairs.h"
#include "text/merge.h"
#include "text/vocabulary.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tally::text {

class SpmEncoder {
 public:
  // Errors: kBadData if scores are missing. `vocabulary` outlives this.
  static base::Result<SpmEncoder> build(const Vocabulary& vocabulary);

  // Text as the pieces spell it: U+2581 for each U+0020, one in front if `space_prefix`. `squeeze` first
  // removes spaces at both ends and makes runs of them one.
  static std::string spell(std::string_view text, bool space_prefix, bool squeeze);

  // End of the part of `spelled` that begins at `at` and that no merge can leave. Encoding part by part gives
  // what encoding the whole gives, and the parts are words.
  size_t part_end(std::string_view spelled, size_t at) const { return pairs_.part_end(spelled, at); }

  // Appends the ids of one part. False: a byte has no token and there is no unknown token.
  bool encode_part(std::string_view part, MergeScratch& scratch, std::vector<TokenId>& ids) const;

  size_t memory_bytes() const;

 private:
  struct Rules;

  explicit SpmEncoder(const Vocabulary& vocabulary);
  void rank_scores();
  // Token that stands for a stretch of text; kNoToken if there is none.
  uint32_t token(std::string_view text) const;
  // Token that the texts of two symbols make; kNoToken if there is none.
  uint32_t joined(uint32_t left, uint32_t right) const;

  const Vocabulary* vocabulary_;
  std::vector<uint32_t> ranks_;          // by id: 0 the highest score, equal scores equal
  std::array<uint32_t, 256> byte_ids_;   // kNoToken: the vocabulary lacks the byte
  std::array<uint32_t, 128> ascii_ids_;  // kNoToken: the character is no token
  CharacterPairs pairs_;                 // of the tokens that text may become
  size_t text_bytes_max_ = 0;            // longest of them
};

}  // namespace tally::text
