#pragma once
// The merge loop that byte-level BPE and SPM share: again and again join the adjacent pair of the lowest
// rank, leftmost first among equals, until no adjacent pair has a rank. A piece is first cut where no token
// can reach across, which changes nothing. Short stretches scan an array; long ones use a linked list and a
// queue, O(n log n) at worst.

#include "text/merge_queue.h"

#include <cstdint>
#include <span>
#include <vector>

namespace tally::text {

inline constexpr uint32_t kNoToken = 0xFFFFFFFF;
inline constexpr uint32_t kNoRank = 0xFFFFFFFF;
inline constexpr size_t kShortSymbolsMax = 32;

struct Symbol {
  uint32_t id = kNoToken;
  uint32_t begin = 0, size = 0;  // bytes of the piece
};

struct MergeCandidate {
  uint32_t rank = kNoRank;  // kNoRank: these two do not merge
  uint32_t merged = kNoToken;
};

// Buffers of one encode call, reused from piece to piece.
struct MergeScratch {
  struct Node {
    Symbol symbol;        // size 0: merged into its left neighbour
    uint32_t prev, next;  // kNoToken: none
  };
  std::vector<Symbol> symbols;  // in: the piece as single symbols; out: merged
  std::vector<Node> nodes;
  MergeQueue queue;
};

// Merges `symbols`, at most kShortSymbolsMax; the result is in front. Returns how many remain.
// `Lookup`: MergeCandidate operator()(const Symbol& left, const Symbol& right).
template <class Lookup>
size_t merge_short(std::span<Symbol> symbols, const Lookup& lookup) {
  MergeCandidate pairs[kShortSymbolsMax];  // pairs[i]: symbols i and i + 1
  size_t count = symbols.size();
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = lookup(symbols[i], symbols[i + 1]);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoRank) break;
    symbols[best].id = pairs[best].merged;
    symbols[best].size += symbols[best + 1].size;
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i - 1] = pairs[i];
    }
    if (best > 0) pairs[best - 1] = lookup(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = lookup(symbols[best], symbols[best + 1]);
  }
  return count;
}

// As merge_short, for any length.
template <class Lookup>
size_t merge_long(std::span<Symbol> symbols, std::vector<MergeScratch::Node>& nodes, MergeQueue& queue,
                  const Lookup& lookup) {
  const auto count = static_cast<uint32_t>(symbols.size());
  nodes.resize(count);
  queue.start(count);
  for (uint32_t i = 0; i < count; ++i) {
    nodes[i] = {symbols[i], i == 0 ? kNoToken : i - 1, i + 1 == count ? kNoToken : i + 1};
  }
  const auto consider = [&](uint32_t left) {
    const Symbol& a = nodes[left].symbol;
    const Symbol& b = nodes[nodes[left].next].symbol;
    const MergeCandidate c = lookup(a, b);
    if (c.rank != kNoRank) queue.push({c.rank, left, c.merged, a.size + b.size});
  };
  for (uint32_t i = 0; i + 1 < count; ++i) consider(i);
  for (MergeQueue::Entry entry; queue.pop(&entry);) {
    auto& node = nodes[entry.position];
    if (node.symbol.size == 0 || node.next == kNoToken) continue;
    auto& right = nodes[node.next];
    if (node.symbol.size + right.symbol.size != entry.size) continue;
    node.symbol.id = entry.merged;
    node.symbol.size = entry.size;
    node.next = right.next;
    right.symbol.size = 0;
    if (node.prev != kNoToken) consider(node.prev);
    if (node.next != kNoToken) {
      nodes[node.next].prev = entry.position;
      consider(entry.position);
    }
  }
  size_t kept = 0;
  for (const auto& node : nodes) {
    if (node.symbol.size != 0) symbols[kept++] = node.symbol;
  }
  return kept;
}

// Merges scratch.symbols in place. `Joins`: bool operator()(const Symbol& left, const Symbol& right), of
// single symbols; false only if no token holds the end of the one before the beginning of the other.
template <class Lookup, class Joins>
void merge_symbols(MergeScratch& scratch, const Lookup& lookup, const Joins& joins) {
  auto& symbols = scratch.symbols;
  const size_t count = symbols.size();
  if (count <= kShortSymbolsMax) {
    symbols.resize(merge_short(symbols, lookup));
    return;
  }
  size_t kept = 0;
  for (size_t begin = 0, end = 0; begin < count; begin = end) {
    end = begin + 1;
    while (end < count && joins(symbols[end - 1], symbols[end])) ++end;
    const std::span<Symbol> stretch = std::span(symbols).subspan(begin, end - begin);
    const size_t left = stretch.size() <= kShortSymbolsMax
                            ? merge_short(stretch, lookup)
                            : merge_long(stretch, scratch.nodes, scratch.queue, lookup);
    for (size_t i = 0; i < left; ++i) symbols[kept++] = stretch[i];
  }
  symbols.resize(kept);
}

}  // namespace tally::text
