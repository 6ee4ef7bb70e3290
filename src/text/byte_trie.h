#pragma once
// A trie of byte strings, laid out breadth first: the children of a node are neighbours. Ground for the two
// Aho-Corasick automata of this room (special tokens, stop strings), which add their own failure links.

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace tally::text {

class ByteTrie {
 public:
  static constexpr uint32_t kRoot = 0;
  static constexpr uint32_t kNone = 0xFFFFFFFF;

  struct Node {
    uint32_t first_child = 0;
    uint32_t parent = kNone;
    uint32_t pattern = kNone;  // index of the pattern that ends here; of equal patterns the first
    uint32_t depth = 0;        // bytes from the root
    uint16_t child_count = 0;
    uint8_t label = 0;  // byte on the way from the parent
  };

  ByteTrie() : nodes_(1) { root_children_.fill_with_none(); }
  // Patterns are not empty.
  explicit ByteTrie(const std::vector<std::string_view>& patterns);

  size_t size() const { return nodes_.size(); }
  const Node& node(uint32_t n) const { return nodes_[n]; }
  // kNone if there is no such child.
  uint32_t child(uint32_t n, uint8_t label) const {
    return n == kRoot ? root_children_.at[label] : child_below_root(n, label);
  }
  size_t memory_bytes() const { return nodes_.capacity() * sizeof(Node) + sizeof(root_children_); }

 private:
  struct RootTable {
    uint32_t at[256];
    void fill_with_none() {
      for (uint32_t& a : at) a = kNone;
    }
  };
  uint32_t child_below_root(uint32_t n, uint8_t label) const;

  std::vector<Node> nodes_;
  RootTable root_children_;
};

}  // namespace tally::text
