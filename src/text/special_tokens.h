#pragma once
// Find special tokens in text, leftmost-longest, with one Aho-Corasick automaton for each of two sets:
// control, unknown and user-defined tokens (trusted text), or user-defined ones only (text of a user).

#include "text/byte_trie.h"
#include "text/vocabulary.h"

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace tally::text {

// Longer special texts are not recognised: bounds what a file can make a search cost.
inline constexpr size_t kSpecialBytesMax = 256;

struct SpecialMatch {
  size_t begin = 0, end = 0;
  uint32_t id = 0;
};

// Leftmost-longest search for a fixed set of texts. Linear in the text times the longest text at worst.
class LeftmostLongest {
 public:
  LeftmostLongest() = default;
  // texts[i] is reported as ids[i].
  LeftmostLongest(const std::vector<std::string_view>& texts, const std::vector<uint32_t>& ids);
  std::optional<SpecialMatch> find(std::string_view text, size_t from) const;
  size_t memory_bytes() const { return trie_.memory_bytes() + links_.capacity() * sizeof(Link); }

 private:
  struct Link {
    uint32_t fail = ByteTrie::kNone;   // kNone: dead, a match that began earlier is final
    uint32_t match = ByteTrie::kNone;  // token id of the match that ends at this node and began first
    uint32_t match_bytes = 0;
  };
  ByteTrie trie_;
  std::vector<Link> links_ = std::vector<Link>(1);
};

class SpecialTokens {
 public:
  explicit SpecialTokens(const Vocabulary& vocabulary);

  // The first special token at or after `from`.
  std::optional<SpecialMatch> find(std::string_view text, size_t from, bool parse_special) const {
    return (parse_special ? all_ : user_defined_).find(text, from);
  }
  // Texts that were left out for their length.
  size_t too_long_count() const { return too_long_count_; }
  size_t memory_bytes() const { return all_.memory_bytes() + user_defined_.memory_bytes(); }

 private:
  LeftmostLongest all_, user_defined_;
  size_t too_long_count_ = 0;
};

}  // namespace tally::text
