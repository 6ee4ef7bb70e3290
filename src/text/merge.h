#pragma once
// The merge loop that all encoders share: again and again join the adjacent pair of the lowest rank, leftmost
// first among equals, until no adjacent pair has a rank. A text is first cut where no token can reach across,
// which changes nothing. Short stretches scan an array; long ones use linked cells and a queue, O(n log n) at
// worst.
//
// What merges is said by `Rules`:
//   Single single(size_t at)                     the character, or byte, of the text at `at`
//   bool may_join(char32_t left, char32_t right) of two singles; false only if no token holds them side by
//   side uint32_t find(uint32_t left, uint32_t right) the rule that joins two symbols; kNoRule uint32_t
//   rank(uint32_t rule), merged(uint32_t rule)

#include "text/merge_queue.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace tally::text {

inline constexpr uint32_t kNoToken = 0xFFFFFFFF;
inline constexpr uint32_t kNoRule = 0xFFFFFFFF;
inline constexpr size_t kShortSymbolsMax = 32;
// A symbol that is no token: this plus the character it stands for.
inline constexpr uint32_t kCharacterSymbol = 0x80000000;

struct Single {
  uint32_t symbol = kNoToken;
  uint32_t length = 1;  // bytes
  char32_t value = 0;
};

// Buffers of one encode call, reused from piece to piece. For one tokenizer only: rules may keep answers.
struct MergeScratch {
  struct Cell {
    uint32_t symbol;
    uint32_t span;  // cells of the symbol that begins here; its last cell has the same number
    uint32_t rule;  // what joins it to the next one; kNoRule in cells where no symbol begins
  };
  struct Answer {
    uint32_t left = kNoToken, right = kNoToken, rule = kNoRule;
  };
  std::vector<Cell> cells;
  MergeQueue queue;
  std::vector<Answer> answers;  // of Rules::find, by hash

  size_t memory_bytes() const {
    return cells.capacity() * sizeof(Cell) + queue.memory_bytes() + answers.capacity() * sizeof(Answer);
  }
};

// Merges `symbols`, at most kShortSymbolsMax; the result is in front. Returns how many remain.
template <class Rules>
size_t merge_short(std::span<uint32_t> symbols, const Rules& rules) {
  struct Pair {
    uint32_t rank, rule;
  };
  std::array<Pair, kShortSymbolsMax> pairs;  // pairs[i]: symbols i and i + 1
  size_t count = symbols.size();
  const auto look = [&](size_t i) {
    const uint32_t rule = rules.find(symbols[i], symbols[i + 1]);
    pairs[i] = {rule == kNoRule ? kNoRule : rules.rank(rule), rule};
  };
  for (size_t i = 0; i + 1 < count; ++i) look(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rule == kNoRule) break;
    symbols[best] = rules.merged(pairs[best].rule);
    --count;
    for (size_t i = best + 1; i < count; ++i) {
      symbols[i] = symbols[i + 1];
      pairs[i - 1] = pairs[i];
    }
    if (best > 0) look(best - 1);
    if (best + 1 < count) look(best);
  }
  return count;
}

// Merges scratch.cells, all of span 1, in place.
template <class Rules>
void merge_long(MergeScratch& scratch, const Rules& rules) {
  std::vector<MergeScratch::Cell>& cells = scratch.cells;
  MergeQueue& queue = scratch.queue;
  const auto count = static_cast<uint32_t>(cells.size());
  queue.start();
  const auto consider = [&](uint32_t left) {
    const uint32_t right = left + cells[left].span;
    const uint32_t rule = right == count ? kNoRule : rules.find(cells[left].symbol, cells[right].symbol);
    cells[left].rule = rule;
    if (rule != kNoRule) queue.push({rules.rank(rule), left});
  };
  for (uint32_t i = 0; i < count; ++i) consider(i);
  // Whatever pair has a rank now has an entry of that rank; other entries of its cell are stale.
  for (MergeQueue::Entry entry; queue.pop(&entry);) {
    MergeScratch::Cell& cell = cells[entry.position];
    if (cell.rule == kNoRule || rules.rank(cell.rule) != entry.rank) continue;
    const uint32_t right = entry.position + cell.span;
    const uint32_t span = cell.span + cells[right].span;
    cells[right].rule = kNoRule;
    cells[entry.position + span - 1].span = span;
    cell.span = span;
    cell.symbol = rules.merged(cell.rule);
    if (entry.position > 0) consider(entry.position - cells[entry.position - 1].span);
    consider(entry.position);
  }
}

// Merges a text of `bytes` bytes and hands the symbols to `emit` (bool operator()(uint32_t symbol), false
// stops), from left to right. False if `emit` stopped.
template <class Rules, class Emit>
bool merge_text(size_t bytes, MergeScratch& scratch, const Rules& rules, const Emit& emit) {
  std::array<uint32_t, kShortSymbolsMax> symbols;
  for (size_t begin = 0, end = 0; begin < bytes; begin = end) {
    size_t count = 0;
    for (Single before; end < bytes; ++count) {
      const Single next = rules.single(end);
      if (count > 0 && !rules.may_join(before.value, next.value)) break;
      if (count < symbols.size()) symbols[count] = next.symbol;
      before = next;
      end += next.length;
    }
    if (count <= symbols.size()) {
      const size_t kept = count == 1 ? 1 : merge_short(std::span(symbols).first(count), rules);
      for (size_t i = 0; i < kept; ++i) {
        if (!emit(symbols[i])) return false;
      }
      continue;
    }
    auto& cells = scratch.cells;
    cells.clear();
    cells.reserve(count);
    for (size_t at = begin; at < end;) {
      const Single single = rules.single(at);
      cells.push_back({single.symbol, 1, kNoRule});
      at += single.length;
    }
    merge_long(scratch, rules);
    for (size_t i = 0; i < cells.size(); i += cells[i].span) {
      if (!emit(cells[i].symbol)) return false;
    }
  }
  return true;
}

}  // namespace tally::text
