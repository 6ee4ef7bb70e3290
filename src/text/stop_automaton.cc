#include "text/stop_automaton.h"

#include "base/utf8.h"

#include <string_view>

namespace tally::text {

StopAutomaton::StopAutomaton(std::span<const std::string> stops) {
  std::vector<std::string_view> patterns;
  for (size_t i = 0; i < stops.size(); ++i) {
    if (base::utf8_find_invalid(stops[i]) != std::string_view::npos) continue;
    patterns.push_back(stops[i]);
    stop_idx_.push_back(i);
    stop_bytes_.push_back(stops[i].size());
  }
  trie_ = ByteTrie(patterns);
  links_.resize(trie_.size());
  // Breadth first, so the links of shallower nodes are ready.
  for (uint32_t n = 1; n < trie_.size(); ++n) {
    const ByteTrie::Node& node = trie_.node(n);
    uint32_t fail = ByteTrie::kRoot;
    if (node.parent != ByteTrie::kRoot) {
      uint32_t f = links_[node.parent].fail;
      while (f != ByteTrie::kRoot && trie_.child(f, node.label) == ByteTrie::kNone) f = links_[f].fail;
      if (const uint32_t c = trie_.child(f, node.label); c != ByteTrie::kNone) fail = c;
    }
    links_[n] = {fail, node.pattern != ByteTrie::kNone ? node.pattern : links_[fail].pattern};
  }
}

std::optional<StopAutomaton::Match> StopAutomaton::feed(char byte) {
  const auto label = static_cast<uint8_t>(byte);
  uint32_t next = trie_.child(state_, label);
  while (next == ByteTrie::kNone && state_ != ByteTrie::kRoot) {
    state_ = links_[state_].fail;
    next = trie_.child(state_, label);
  }
  if (next != ByteTrie::kNone) state_ = next;
  const uint32_t pattern = links_[state_].pattern;
  if (pattern == ByteTrie::kNone) return std::nullopt;
  return Match{stop_idx_[pattern], stop_bytes_[pattern]};
}

}  // namespace tally::text
