#include "engine/drafts/lookup.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

namespace tally::engine {
namespace {

std::vector<TokenId> ids(std::initializer_list<int> values) {
  std::vector<TokenId> out;
  for (const int v : values) out.push_back(TokenId{v});
  return out;
}

// The definition: the longest suffix, of each the latest place behind `begin`, by looking at all of them.
LookupIndex::Match look_everywhere(std::span<const TokenId> known, uint32_t begin) {
  const auto size = static_cast<uint32_t>(known.size());
  for (uint32_t n = LookupIndex::kSuffixMax; n >= LookupIndex::kSuffixMin; --n) {
    for (uint32_t end = size - 1; size > n && end >= begin + n; --end) {
      if (std::ranges::equal(known.subspan(end - n, n), known.subspan(size - n, n))) return {end, n};
    }
  }
  return {};
}

struct LookupBed {
  std::vector<std::byte> memory;
  Lookup lookup;
  explicit LookupBed(std::vector<TokenId> stops = {}, uint32_t seats = 1)
      : memory(Lookup::bytes(seats, 64)), lookup(memory, seats, 64, std::move(stops)) {}
  std::vector<TokenId> propose(const std::vector<TokenId>& known, size_t most = 16, uint32_t* grade = nullptr) {
    lookup.observe(0, known, true);
    std::vector<TokenId> into(most);
    const Proposal p = lookup.propose({.seat = 0, .known = known, .into = into});
    into.resize(p.count);
    if (grade != nullptr) *grade = p.grade;
    return into;
  }
};

RC_GTEST_PROP(LookupIndexProperty, FindsWhatABruteForceSearchFinds, ()) {
  const auto window = *rc::gen::inRange<uint32_t>(8, 96);
  const auto alphabet = *rc::gen::inRange(1, 12);
  const auto text = *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, alphabet));
  const auto pieces = *rc::gen::inRange<size_t>(1, 9);
  std::vector<uint32_t> slots(window * LookupIndex::kSlotsPerToken);
  LookupIndex index(slots);
  std::vector<TokenId> known;
  for (const int id : text) {
    known.push_back(TokenId{id * 40'961});
    if (known.size() % pieces != 0) continue;  // several tokens a commit
    index.extend(known);
    const LookupIndex::Match found = index.find(known), wanted = look_everywhere(known, index.begin());
    RC_ASSERT(found.suffix == wanted.suffix);
    RC_ASSERT(found.end == wanted.end);
    RC_ASSERT(known.size() - index.begin() >= std::min<size_t>(known.size(), window / 2));
  }
}

TEST(LookupIndex, RollsOverALongText) {
  std::vector<uint32_t> slots(16 * LookupIndex::kSlotsPerToken);
  LookupIndex index(slots);
  std::vector<TokenId> known;
  for (int i = 0; i < 1000; ++i) {
    known.push_back(TokenId{i % 7 == 0 ? i : i % 7});
    index.extend(known);
    const LookupIndex::Match found = index.find(known), wanted = look_everywhere(known, index.begin());
    ASSERT_EQ(found.end, wanted.end) << i;
    ASSERT_EQ(found.suffix, wanted.suffix) << i;
  }
  EXPECT_GT(index.begin(), 980u);
  // A text that never fits, at once.
  index.clear();
  index.extend(known);
  EXPECT_GE(index.begin(), 990u);
}

TEST(LookupIndex, TakesSixteenBytesAToken) { EXPECT_EQ(LookupIndex::bytes(1000), 16'000u); }

TEST(Lookup, CopiesWhatFollowed) {
  LookupBed bed;
  EXPECT_EQ(bed.propose(ids({1, 2, 3, 4, 5, 9, 1, 2})), ids({3, 4, 5, 9, 1, 2}));
  EXPECT_EQ(bed.propose(ids({1, 2, 3, 4, 5, 9, 1, 2}), 2), ids({3, 4}));
  EXPECT_EQ(bed.propose(ids({1, 2, 3, 4, 5, 9, 1, 2}), 0), ids({}));
  EXPECT_EQ(bed.propose(ids({1, 2, 3, 4})), ids({}));
  EXPECT_EQ(bed.propose(ids({1})), ids({}));
}

TEST(Lookup, TheLatestPlaceOfTheLongestSuffix) {
  LookupBed bed;
  EXPECT_EQ(bed.propose(ids({1, 2, 3, 7, 1, 2, 3, 8, 2, 3, 9, 1, 2, 3}), 1), ids({8}));  // not 9, after a pair
  EXPECT_EQ(bed.propose(ids({1, 2, 3, 7, 2, 3, 9, 5, 2, 3}), 1), ids({9}));
}

TEST(Lookup, StopsAtTheEndOfTheTextAndAtControlTokens) {
  LookupBed bed({TokenId{90}, TokenId{91}});
  EXPECT_EQ(bed.propose(ids({1, 2, 3, 90, 4, 1, 2})), ids({3}));
  EXPECT_EQ(bed.propose(ids({1, 2, 91, 4, 1, 2})), ids({}));
  EXPECT_EQ(bed.propose(ids({5, 5, 5, 5})), ids({5}));
}

TEST(Lookup, GradesByHowMuchIsTheSame) {
  LookupBed bed;
  uint32_t grade = 9;
  bed.propose(ids({1, 2, 7, 8, 1, 2}), 1, &grade);
  EXPECT_EQ(grade, 0u);
  bed.propose(ids({1, 2, 3, 7, 8, 1, 2, 3}), 1, &grade);
  EXPECT_EQ(grade, 1u);
  bed.propose(ids({1, 2, 3, 4, 7, 8, 1, 2, 3, 4}), 1, &grade);
  EXPECT_EQ(grade, 2u);
  bed.propose(ids({1, 2, 3, 4, 5, 6, 7, 8, 90, 91, 1, 2, 3, 4, 5, 6, 7, 8}), 1, &grade);
  EXPECT_EQ(grade, 3u);
}

TEST(Lookup, SeatsKnowNothingOfEachOther) {
  LookupBed bed({}, 2);
  const auto a = ids({1, 2, 3, 1, 2}), b = ids({1, 2, 4, 1, 2});
  bed.lookup.observe(0, a, true);
  bed.lookup.observe(1, b, true);
  std::vector<TokenId> into(1);
  EXPECT_EQ(bed.lookup.propose({.seat = 0, .known = a, .into = into}).count, 1u);
  EXPECT_EQ(into, ids({3}));
  EXPECT_EQ(bed.lookup.propose({.seat = 1, .known = b, .into = into}).count, 1u);
  EXPECT_EQ(into, ids({4}));
  bed.lookup.observe(0, {}, true);
  bed.lookup.observe(0, b, true);  // another sequence takes the seat
  EXPECT_EQ(bed.lookup.propose({.seat = 0, .known = b, .into = into}).count, 1u);
  EXPECT_EQ(into, ids({4}));
}

}  // namespace
}  // namespace tally::engine
