// The fast merge loops against the definition: look at all pairs, take the lowest rank, leftmost first,
// again.

#include "text/merge.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace tally::text {
namespace {

// Ranks of pairs of ids; equal ranks happen, as with scores.
struct Merged {
  uint32_t rank = kNoRule, id = kNoToken;
};
using RankedPairs = std::map<std::pair<uint32_t, uint32_t>, Merged>;

std::vector<uint32_t> merge_by_definition(std::vector<uint32_t> ids, const RankedPairs& pairs) {
  for (;;) {
    size_t best = ids.size();
    uint32_t best_rank = kNoRule;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto pair = pairs.find({ids[i], ids[i + 1]});
      if (pair != pairs.end() && pair->second.rank < best_rank) best = i, best_rank = pair->second.rank;
    }
    if (best_rank == kNoRule) return ids;
    ids[best] = pairs.at({ids[best], ids[best + 1]}).id;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

// A rule is the place of its pair in the map.
struct TestRules {
  const std::vector<uint32_t>& ids;
  const RankedPairs& pairs;
  bool cuts = false;

  Single single(size_t at) const { return {ids[at], 1, ids[at]}; }
  // Single symbols 0 and 1 never stand side by side in a token below.
  bool may_join(char32_t left, char32_t right) const { return !cuts || left + right != 1; }
  uint32_t find(uint32_t left, uint32_t right) const {
    const auto pair = pairs.find({left, right});
    return pair == pairs.end() ? kNoRule : static_cast<uint32_t>(std::distance(pairs.begin(), pair));
  }
  const Merged& at(uint32_t rule) const { return std::next(pairs.begin(), rule)->second; }
  uint32_t rank(uint32_t rule) const { return at(rule).rank; }
  uint32_t merged(uint32_t rule) const { return at(rule).id; }
};

struct Loops {
  std::vector<uint32_t> cut, whole;  // merge_text with and without cutting; merge_long alone
  std::vector<uint32_t> queue;
};

Loops merge_by_loops(const std::vector<uint32_t>& ids, const RankedPairs& pairs) {
  Loops loops;
  MergeScratch scratch;
  const auto into = [](std::vector<uint32_t>& out) {
    return [&out](uint32_t symbol) {
      out.push_back(symbol);
      return true;
    };
  };
  EXPECT_TRUE(merge_text(ids.size(), scratch, TestRules{ids, pairs}, into(loops.whole)));
  EXPECT_TRUE(merge_text(ids.size(), scratch, TestRules{ids, pairs, true}, into(loops.cut)));
  scratch.cells.clear();
  for (const uint32_t id : ids) scratch.cells.push_back({id, 1, kNoRule});
  merge_long(scratch, TestRules{ids, pairs});
  size_t at = 0;
  for (; at < ids.size(); at += scratch.cells[at].span) loops.queue.push_back(scratch.cells[at].symbol);
  EXPECT_EQ(at, ids.size());
  return loops;
}

RC_GTEST_PROP(Merge, IsWhatTheDefinitionSays, ()) {
  constexpr uint32_t kSingles = 4;
  // Tokens as strings over the singles; a rule joins two of them into a third that is their concatenation.
  std::vector<std::vector<uint32_t>> tokens;
  for (uint32_t s = 0; s < kSingles; ++s) tokens.push_back({s});
  RankedPairs rules;
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
  const RankedPairs rules = {{{0, 0}, {5, 7}}};
  EXPECT_EQ(merge_by_loops({0, 0, 0, 0, 0}, rules).whole, (std::vector<uint32_t>{7, 7, 0}));
  EXPECT_EQ(merge_by_loops(std::vector<uint32_t>(65, 0), rules).whole.size(), 33u);
}

// T8. A megabyte in which every pair merges, in three ways at once: the buffers stay within bounds.
TEST(Merge, MemoryOfALongStretch) {
  const RankedPairs pairs = {{{0, 1}, {5, 3}}, {{1, 2}, {6, 4}}, {{2, 0}, {7, 5}},
                             {{3, 2}, {8, 6}}, {{6, 6}, {9, 7}}, {{7, 7}, {10, 8}}};
  std::vector<uint32_t> ids(1u << 20);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<uint32_t>(i % 3);
  MergeScratch scratch;
  size_t kept = 0;
  EXPECT_TRUE(merge_text(ids.size(), scratch, TestRules{ids, pairs}, [&](uint32_t) { return ++kept > 0; }));
  EXPECT_EQ(kept, 87383u);
  EXPECT_LT(scratch.memory_bytes(), 24u << 20);
}

TEST(Merge, StopsWhenTheReceiverDoes) {
  const std::vector<uint32_t> ids(40, 3);
  MergeScratch scratch;
  int taken = 0;
  EXPECT_FALSE(merge_text(ids.size(), scratch, TestRules{ids, {}}, [&](uint32_t) { return ++taken < 5; }));
  EXPECT_EQ(taken, 5);
}

// Pushes go on while merges are taken: each time the lowest that waits comes out. Entries that wait already are not
// pushed again: of equal ones the queue may keep one.
TEST(MergeQueue, AlwaysPopsTheLowest) {
  using Pushes = std::vector<std::pair<uint8_t, uint16_t>>;
  const bool ok =
      rc::check("lowest rank, then position", [](const Pushes& first, const std::vector<Pushes>& more) {
        MergeQueue queue;
        queue.start();
        std::set<std::pair<uint32_t, uint32_t>> waiting;
        const auto push = [&](const Pushes& pushes) {
          for (const auto& [rank, position] : pushes) {
            if (waiting.emplace(rank, position).second) queue.push({rank, position});
          }
        };
        push(first);
        size_t turn = 0;
        for (MergeQueue::Entry e; queue.pop(&e);) {
          RC_ASSERT(!waiting.empty());
          RC_ASSERT((std::pair<uint32_t, uint32_t>{e.rank, e.position}) == *waiting.begin());
          waiting.erase(waiting.begin());
          if (turn < more.size()) push(more[turn++]);
        }
        RC_ASSERT(waiting.empty());
      });
  EXPECT_TRUE(ok);
}

TEST(MergeQueue, ManyOutOfOrder) {
  MergeQueue queue;
  queue.start();
  for (uint32_t i = 0; i < 100000; ++i) queue.push({7, i * 7919 % 100000});
  uint32_t expected = 0;
  for (MergeQueue::Entry e; queue.pop(&e); ++expected) ASSERT_EQ(e.position, expected);
  EXPECT_EQ(expected, 100000u);
}

}  // namespace
}  // namespace tally::text
