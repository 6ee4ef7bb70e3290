#pragma once
// Find the first stop string in a stream of bytes: Aho-Corasick over text, whatever the borders of tokens.

#include "text/byte_trie.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tally::text {

class StopAutomaton {
 public:
  struct Match {
    size_t stop_idx = 0;  // of equal strings the first
    size_t bytes = 0;
  };

  // Strings that are not valid UTF-8 never match: the text is always valid.
  explicit StopAutomaton(std::span<const std::string> stops);

  // Takes one byte. The match that ends with it, if any; of several the longest.
  std::optional<Match> feed(char byte);
  // Bytes at the end of the text so far that may be the beginning of a stop string.
  size_t depth() const { return trie_.node(state_).depth; }

 private:
  struct Link {
    uint32_t fail = ByteTrie::kRoot;
    uint32_t pattern = ByteTrie::kNone;  // longest that ends here
  };
  std::vector<size_t> stop_idx_;  // of each pattern
  std::vector<size_t> stop_bytes_;
  ByteTrie trie_;
  std::vector<Link> links_;
  uint32_t state_ = ByteTrie::kRoot;
};

}  // namespace tally::text
