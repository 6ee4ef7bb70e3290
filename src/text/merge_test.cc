// The fast merge loops against the definition: look at all pairs, take the lowest rank, leftmost first,
// again.

#include "text/merge.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

namespace tally::text {
namespace {

// Ranks of pairs of ids; equal ranks happen, as with scores.
using Rules = std::map<std::pair<uint32_t, uint32_t>, MergeCandidate>;

std::vector<uint32_t> merge_by_definition(std::vector<uint32_t> ids, const Rules& rules) {
  for (;;) {
    size_t best = ids.size();
    uint32_t best_rank = kNoRank;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto rule = rules.find({ids[i], ids[i + 1]});
      if (rule != rules.end() && rule->second.rank < best_rank) best = i, best_rank = rule->second.rank;
    }
    if (best_rank == kNoRank) return ids;
    ids[best] = rules.at({ids[best], ids[best + 1]}).merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

struct Loops {
  std::vector<uint32_t> cut, whole;  // merge_symbols with and without cutting; merge_long alone
  std::vector<uint32_t> queue;
};

Loops merge_by_loops(const std::vector<uint32_t>& ids, const Rules& rules) {
  const auto lookup = [&](const Symbol& a, const Symbol& b) {
    const auto rule = rules.find({a.id, b.id});
    return rule == rules.end() ? MergeCandidate{} : rule->second;
  };
  std::vector<Symbol> start;
  for (size_t i = 0; i < ids.size(); ++i) start.push_back({ids[i], static_cast<uint32_t>(i), 1});
  const auto ids_of = [&](std::span<const Symbol> symbols) {
    std::vector<uint32_t> out;
    uint32_t at = 0;
    for (const Symbol& s : symbols) {
      EXPECT_EQ(s.begin, at);
      at += s.size;
      out.push_back(s.id);
    }
    EXPECT_EQ(at, ids.size());
    return out;
  };
  Loops loops;
  MergeScratch scratch;
  scratch.symbols = start;
  merge_symbols(scratch, lookup, [](const Symbol&, const Symbol&) { return true; });
  loops.whole = ids_of(scratch.symbols);
  scratch.symbols = start;
  // Single symbols 0 and 1 never stand side by side in a token below.
  merge_symbols(scratch, lookup, [](const Symbol& a, const Symbol& b) { return a.id + b.id != 1; });
  loops.cut = ids_of(scratch.symbols);
  scratch.symbols = start;
  const size_t count = merge_long(std::span(scratch.symbols), scratch.nodes, scratch.queue, lookup);
  loops.queue = ids_of(std::span(scratch.symbols).first(count));
  return loops;
}

RC_GTEST_PROP(Merge, IsWhatTheDefinitionSays, ()) {
  constexpr uint32_t kSingles = 4;
  // Tokens as strings over the singles; a rule joins two of them into a third that is their concatenation.
  std::vector<std::vector<uint32_t>> tokens;
  for (uint32_t s = 0; s < kSingles; ++s) tokens.push_back({s});
  Rules rules;
  const size_t wanted = *rc::gen::inRange<size_t>(1, 40);
  for (size_t k = 0; k < wanted; ++k) {
    const uint32_t left = *rc::gen::inRange<uint32_t>(0, static_cast<uint32_t>(tokens.size()));
    const uint32_t right = *rc::gen::inRange<uint32_t>(0, static_cast<uint32_t>(tokens.size()));
    if (tokens[left].back() + tokens[right].front() == 1) continue;  // see merge_by_loops
    std::vector<uint32_t> whole = tokens[left];
    whole.insert(whole.end(), tokens[right].begin(), tokens[right].end());
    uint32_t id = 0;
    while (id < tokens.size() && tokens[id] != whole) ++id;
    if (id == tokens.size()) tokens.push_back(whole);
    rules.insert({{left, right}, {*rc::gen::inRange<uint32_t>(0, 12), id}});
  }
  for (int i = 0; i < 5; ++i) {
    const auto length = *rc::gen::inRange<size_t>(0, 200);
    const auto ids =
        *rc::gen::container<std::vector<uint32_t>>(length, rc::gen::inRange<uint32_t>(0, kSingles));
    const auto expected = merge_by_definition(ids, rules);
    const Loops loops = merge_by_loops(ids, rules);
    RC_ASSERT(loops.whole == expected);
    RC_ASSERT(loops.cut == expected);
    RC_ASSERT(loops.queue == expected);
  }
}

TEST(Merge, LeftmostFirstInARun) {
  const Rules rules = {{{0, 0}, {5, 7}}};
  EXPECT_EQ(merge_by_loops({0, 0, 0, 0, 0}, rules).whole, (std::vector<uint32_t>{7, 7, 0}));
  EXPECT_EQ(merge_by_loops(std::vector<uint32_t>(65, 0), rules).whole.size(), 33u);
}

TEST(MergeQueue, PopsInOrderWhateverTheOrderOfPushes) {
  const bool ok =
      rc::check("sorted by rank, then position", [](const std::vector<std::pair<uint8_t, uint8_t>>& entries) {
        MergeQueue queue;
        queue.start(entries.size());
        for (const auto& [rank, position] : entries) queue.push({rank, position, 0, 0});
        std::vector<std::pair<uint8_t, uint8_t>> expected = entries, got;
        std::sort(expected.begin(), expected.end());
        for (MergeQueue::Entry e; queue.pop(&e);) {
          got.emplace_back(static_cast<uint8_t>(e.rank), static_cast<uint8_t>(e.position));
        }
        RC_ASSERT(got == expected);
      });
  EXPECT_TRUE(ok);
}

}  // namespace
}  // namespace tally::text
