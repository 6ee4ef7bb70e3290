#include "text/byte_trie.h"

#include "base/check.h"

#include <algorithm>
#include <numeric>

namespace tally::text {

ByteTrie::ByteTrie(const std::vector<std::string_view>& patterns) : nodes_(1) {
  root_children_.fill_with_none();
  std::vector<uint32_t> order(patterns.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return patterns[a] < patterns[b]; });

  // Node n stands for the sorted patterns [first, last) that share its path.
  struct Range {
    size_t first, last;
  };
  std::vector<Range> ranges = {{0, order.size()}};
  for (uint32_t n = 0; n < nodes_.size(); ++n) {
    size_t first = ranges[n].first;
    const size_t last = ranges[n].last;
    const uint32_t depth = nodes_[n].depth;
    if (first < last && patterns[order[first]].size() == depth) {
      TALLY_CHECK(depth > 0, "empty pattern in a trie");
      nodes_[n].pattern = order[first];
      while (first < last && patterns[order[first]].size() == depth) ++first;
    }
    nodes_[n].first_child = static_cast<uint32_t>(nodes_.size());
    while (first < last) {
      const char byte = patterns[order[first]][depth];
      size_t end = first;
      while (end < last && patterns[order[end]][depth] == byte) ++end;
      Node child;
      child.parent = n;
      child.depth = depth + 1;
      child.label = static_cast<uint8_t>(byte);
      if (n == kRoot) root_children_.at[child.label] = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back(child);
      ranges.push_back({first, end});
      ++nodes_[n].child_count;
      first = end;
    }
  }
  nodes_.shrink_to_fit();
}

uint32_t ByteTrie::child_below_root(uint32_t n, uint8_t label) const {
  const Node& node = nodes_[n];
  // Few children mostly; sorted by label as unsigned bytes, as string_view compares.
  for (uint32_t c = node.first_child; c < node.first_child + node.child_count; ++c) {
    if (nodes_[c].label == label) return c;
    if (nodes_[c].label > label) break;
  }
  return kNone;
}

}  // namespace tally::text
