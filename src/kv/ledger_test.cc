#include "kv/random_walk_test_support.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace tally::kv {
namespace {

constexpr Namespace kOther{1, 2, 3, 5};

Ledger small(uint32_t blocks = 4, uint32_t hash_bits = 64) { return Ledger({blocks, 2, true, hash_bits}); }

// Takes a block, fills it and registers it; the table owns it.
Handle fill_and_register(Ledger& ledger, BlockTable& table, Handle parent, const Ids& ids,
                         const Namespace& space = kSpace) {
  table.push(*ledger.take(1));
  ledger.commit_rows(table.back(), 2);
  return ledger.register_block(table.back(), {parent, &space, ids});
}

void check(const Ledger& ledger, std::initializer_list<const BlockTable*> tables) {
  ledger.check(std::vector<const BlockTable*>(tables));
}

TEST(Ledger, TakesEachBlockOnceLowestFirstAndSaysWhenNoneIsLeft) {
  Ledger ledger = small();
  BlockTable table;
  for (uint32_t i = 0; i < 4; ++i) {
    table.push(ledger.take(1).value());
    EXPECT_EQ(raw(table.back().id), i);
  }
  EXPECT_FALSE(ledger.take(1).has_value());
  EXPECT_EQ(ledger.available(), 0U);
  EXPECT_EQ(ledger.stats().waste_tokens, 8U);
  check(ledger, {&table});
  drop_all(ledger, table, 2);
  EXPECT_EQ(ledger.stats().free, 4U);
  check(ledger, {});
}

TEST(Ledger, LastFreedIsTakenFirst) {
  Ledger ledger = small();
  BlockTable a, b;
  a.push(*ledger.take(1));
  b.push(*ledger.take(1));
  a.push(*ledger.take(1));
  ledger.drop(b.back(), 2);
  EXPECT_EQ(raw(ledger.take(3)->id), 1U);
}

// Blocks of four tokens, all owned by one table.
struct Siblings {
  Ledger ledger{LedgerConfig{6, 4, true}};
  BlockTable table;
  Handle add(Handle parent, const Ids& ids, const Namespace& space = kSpace) {
    table.push(*ledger.take(1));
    ledger.commit_rows(table.back(), 4);
    return ledger.register_block(table.back(), {parent, &space, ids});
  }
};

TEST(Ledger, FindsTheEntryWithMostRowsInCommon) {
  Siblings s;
  const Handle a = s.add(kRoot, ids_of({1, 2, 3, 4})), b = s.add(kRoot, ids_of({1, 2, 9, 9}));
  const Handle under = s.add(a, ids_of({1, 2, 3, 5})), foreign = s.add(kRoot, ids_of({1, 2, 3, 7}), kOther);
  const auto found = [&](Handle parent, const Ids& ids, const Namespace& space = kSpace) {
    const auto hit = s.ledger.find_partial({parent, &space, ids});
    return hit ? std::pair(hit->entry, hit->rows) : std::pair(kRoot, 0U);
  };
  EXPECT_EQ(found(kRoot, ids_of({1, 2, 3, 8})), std::pair(a, 3U));
  EXPECT_EQ(found(kRoot, ids_of({1, 2, 9})), std::pair(b, 3U));
  EXPECT_EQ(found(kRoot, ids_of({1, 2})), std::pair(b, 2U)) << "the newest of equals";
  EXPECT_EQ(found(kRoot, ids_of({2, 2})), std::pair(kRoot, 0U));
  EXPECT_EQ(found(kRoot, {}), std::pair(kRoot, 0U));
  EXPECT_EQ(found(a, ids_of({1, 2, 3, 4})), std::pair(under, 3U));
  EXPECT_EQ(found(b, ids_of({1, 2, 3, 4})), std::pair(kRoot, 0U));
  EXPECT_EQ(found(kRoot, ids_of({1, 2, 3, 8}), kOther), std::pair(foreign, 3U));
  check(s.ledger, {&s.table});
  drop_all(s.ledger, s.table, 2);
  s.ledger.reset_prefix();
  EXPECT_EQ(found(kRoot, ids_of({1, 2, 3, 8})), std::pair(kRoot, 0U));
  check(s.ledger, {});
}

TEST(Ledger, CopiesRowsOfAnEntryThatIsNotEvictedForIt) {
  Siblings s;
  const Handle entry = s.add(kRoot, ids_of({1, 2, 3, 4}));
  drop_all(s.ledger, s.table, 2);
  BlockTable others;
  for (int i = 0; i < 5; ++i) others.push(*s.ledger.take(3));
  EXPECT_FALSE(s.ledger.copy_rows(entry, 3, 4).has_value()) << "the only block left is the entry";
  EXPECT_TRUE(s.ledger.is_entry(entry));
  s.ledger.drop(others.back(), 5);
  others.pop();
  BlockTable table;
  table.push(s.ledger.copy_rows(entry, 3, 6).value());
  EXPECT_TRUE(s.ledger.is_entry(entry));
  EXPECT_EQ(s.ledger.info(table.back().id).fill, 3U);
  check(s.ledger, {&table, &others});
}

TEST(Ledger, FindsAFullBlockByParentNamespaceAndIds) {
  Ledger ledger = small();
  BlockTable table;
  const Ids first = ids_of({1, 2}), second = ids_of({3, 4});
  const Handle root = fill_and_register(ledger, table, kRoot, first);
  const Handle child = fill_and_register(ledger, table, root, second);
  EXPECT_EQ(ledger.find({kRoot, &kSpace, first}), root);
  EXPECT_EQ(ledger.find({root, &kSpace, second}), child);
  EXPECT_FALSE(ledger.find({kRoot, &kSpace, second}).has_value());
  EXPECT_FALSE(ledger.find({root, &kSpace, first}).has_value());
  EXPECT_FALSE(ledger.find({kRoot, &kOther, first}).has_value());
  check(ledger, {&table});
}

TEST(Ledger, AHashOfOneBitFindsTheSameAndCountsMismatches) {
  Ledger ledger = small(16, 1);
  BlockTable table;
  Handle parent = kRoot;
  std::vector<Handle> chain;
  for (int i = 0; i < 12; ++i) {
    parent = fill_and_register(ledger, table, parent, ids_of({i, i}));
    chain.push_back(parent);
  }
  parent = kRoot;
  for (int i = 0; i < 12; ++i) {
    const auto found = ledger.find({parent, &kSpace, ids_of({i, i})});
    ASSERT_EQ(found, chain[static_cast<size_t>(i)]);
    parent = *found;
  }
  EXPECT_GT(ledger.stats().hash_mismatches, 0U);
  check(ledger, {&table});
}

TEST(Ledger, TheEarlierOfTwoEqualBlocksStays) {
  Ledger ledger = small();
  BlockTable a, b;
  const Handle first = fill_and_register(ledger, a, kRoot, ids_of({1, 2}));
  EXPECT_EQ(fill_and_register(ledger, b, kRoot, ids_of({1, 2})), first);
  EXPECT_EQ(ledger.state(b[0]), BlockState::kHeld);
  EXPECT_EQ(ledger.state(first), BlockState::kBoth);
  // Registering what is registered changes nothing.
  EXPECT_EQ(ledger.register_block(a[0], {kRoot, &kSpace, ids_of({1, 2})}), first);
  check(ledger, {&a, &b});
}

TEST(Ledger, EvictsTheOldestLeafAndDeeperOnesFirst) {
  Ledger ledger = small(3);
  BlockTable a, b;
  const Handle root = fill_and_register(ledger, a, kRoot, ids_of({1, 2}));
  fill_and_register(ledger, a, root, ids_of({3, 4}));
  fill_and_register(ledger, b, kRoot, ids_of({5, 6}));
  drop_all(ledger, a, 5);
  drop_all(ledger, b, 4);
  EXPECT_EQ(ledger.stats().cached, 3U);
  EXPECT_EQ(raw(ledger.take(6)->id), 2U);  // b's: older
  EXPECT_EQ(raw(ledger.take(6)->id), 1U);  // a's tail: same tick as its head, but deeper
  EXPECT_EQ(raw(ledger.take(6)->id), 0U);
  EXPECT_EQ(ledger.stats().evictions, 3U);
}

TEST(Ledger, AHitSavesABlockFromEviction) {
  Ledger ledger = small(2);
  BlockTable a, b;
  const Handle old = fill_and_register(ledger, a, kRoot, ids_of({1, 2}));
  fill_and_register(ledger, b, kRoot, ids_of({3, 4}));
  drop_all(ledger, a, 2);
  drop_all(ledger, b, 3);
  ledger.hit(old, 4);
  a.push(old);
  EXPECT_EQ(raw(ledger.take(5)->id), 1U);
  EXPECT_FALSE(ledger.take(5).has_value());
}

// A chain goes on below an equal entry of another; that entry's owner ends. It is no leaf, yet nobody owns
// it: when nothing else is left, the chain below it is taken out of the index.
TEST(Ledger, ACachedEntryUnderOwnedOnesIsGivenWhenNothingElseIs) {
  Ledger ledger = small(3);
  BlockTable a, b;
  const Handle root = fill_and_register(ledger, a, kRoot, ids_of({1, 2}));
  EXPECT_EQ(fill_and_register(ledger, b, kRoot, ids_of({1, 2})), root);
  const Handle child = fill_and_register(ledger, b, root, ids_of({3, 4}));
  drop_all(ledger, a, 2);
  EXPECT_EQ(ledger.available(), 1U);
  check(ledger, {&b});
  EXPECT_EQ(raw(ledger.take(3).value().id), raw(root.id));
  EXPECT_FALSE(ledger.is_entry(root));
  EXPECT_FALSE(ledger.is_entry(child));
  EXPECT_EQ(ledger.state(child), BlockState::kHeld);
  EXPECT_EQ(ledger.stats().evictions, 1U);  // the other has an owner still
  EXPECT_EQ(ledger.ages().lifetime.counts()[0], 1U);
}

TEST(Ledger, ResetUnregistersEverythingAndFreesWhatNobodyOwns) {
  Ledger ledger = small();
  BlockTable a, b;
  const Handle root = fill_and_register(ledger, a, kRoot, ids_of({1, 2}));
  fill_and_register(ledger, b, root, ids_of({3, 4}));
  drop_all(ledger, b, 2);
  EXPECT_EQ(ledger.reset_prefix(), 1U);
  EXPECT_EQ(ledger.epoch(), 1U);
  EXPECT_EQ(ledger.state(a[0]), BlockState::kHeld);
  EXPECT_FALSE(ledger.find({kRoot, &kSpace, ids_of({1, 2})}).has_value());
  check(ledger, {&a});
  drop_all(ledger, a, 3);
  EXPECT_EQ(ledger.stats().free, 4U);
}

TEST(Ledger, CopyOnWriteTakesABlockOrChangesNothing) {
  Ledger ledger = small(2);
  BlockTable a, b;
  a.push(*ledger.take(1));
  ledger.commit_rows(a[0], 1);
  ledger.share(a[0]);
  b.push(a[0]);
  EXPECT_DEATH(ledger.expect_writable(a[0], 1), "must not change");
  const Handle copy = ledger.copy_on_write(b[0], 2).value();
  b.pop();
  b.push(copy);
  EXPECT_EQ(ledger.info(copy.id).fill, 1U);
  ledger.expect_writable(a[0], 1);
  ledger.expect_writable(copy, 1);
  check(ledger, {&a, &b});

  ledger.share(a[0]);
  BlockTable c;
  c.push(a[0]);
  EXPECT_FALSE(ledger.copy_on_write(c[0], 3).has_value());
  check(ledger, {&a, &b, &c});
}

TEST(LedgerDeath, IllegalMovesAndStaleHandlesEndTheProcess) {
  Ledger ledger = small();
  BlockTable table;
  const Handle root = fill_and_register(ledger, table, kRoot, ids_of({1, 2}));
  EXPECT_DEATH(ledger.commit_rows(root, 2), "not written");
  EXPECT_DEATH(ledger.copy_on_write(root, 1), "one owner");
  EXPECT_DEATH(check(ledger, {}), "L2");
  EXPECT_DEATH(check(ledger, {&table, &table}), "L2");
  EXPECT_DEATH(ledger.find({kRoot, &kSpace, ids_of({1})}), "ids of a block");
  ledger.drop(root, 2);
  EXPECT_DEATH(ledger.drop(root, 2), "illegal move");
  EXPECT_DEATH(ledger.share({BlockId{9}, 1}), "no such block");
  ledger.reset_prefix();
  EXPECT_DEATH(ledger.hit(root, 2), "illegal move");
  EXPECT_DEATH(ledger.find({root, &kSpace, ids_of({1, 2})}), "not registered");
  const Handle next = *ledger.take(3);
  EXPECT_EQ(next.id, root.id);
  EXPECT_DEATH(ledger.drop(root, 3), "stale handle");
  EXPECT_DEATH(ledger.register_block(next, {kRoot, &kSpace, ids_of({1, 2})}), "not full");
}

TEST(Ledger, BytesAreWhatTheConstructorAllocates) {
  // 100 records of 192 bytes, 100 * 16 ids, 100 places in the eviction order, 128 buckets; 8 events of 64
  // bytes and 16 ids.
  const size_t bytes = 100U * 192 + 100 * 16 * 4 + 100 * 4 + 128 * 4;
  EXPECT_EQ(ledger_bytes({100, 16, true, 64}), bytes);
  EXPECT_EQ(ledger_bytes({100, 16, true, 64, 8}), bytes + 8U * (64 + 16 * 4));
}

TEST(Ledger, AgesInStepsSinceTheLastUse) {
  Ledger ledger = small();
  BlockTable table;
  table.push(*ledger.take(1));
  const BlockId id = table.back().id;
  EXPECT_EQ(ledger.info(id).age_steps, 0U);
  for (int i = 0; i < 3; ++i) ledger.begin_step();
  EXPECT_EQ(ledger.info(id).age_steps, 3U);
  ledger.drop(table.back(), 2);
  EXPECT_EQ(ledger.info(id).age_steps, 0U);
  EXPECT_EQ(ledger.info(BlockId{3}).age_steps, 3U);
}

// Of what edge a count is the only one.
size_t only_edge(const AgeCounts& ages) {
  size_t at = SIZE_MAX;
  for (size_t i = 0; i < ages.counts().size(); ++i) {
    if (ages.counts()[i] == 0) continue;
    EXPECT_EQ(at, SIZE_MAX);
    EXPECT_EQ(ages.counts()[i], 1U);
    at = i;
  }
  return at;
}

TEST(Ledger, TellsHowLongBlocksLiveAndRest) {
  constexpr Tick kSecond = 1'000'000;
  Ledger ledger = small(1);
  BlockTable table;
  const Handle entry = fill_and_register(ledger, table, kRoot, ids_of({1, 2}));  // taken at 1
  ledger.drop(table.back(), 1 + 2 * kSecond);
  EXPECT_EQ(only_edge(ledger.ages().reuse_gap), SIZE_MAX);
  ledger.hit(entry, 1 + 5 * kSecond);
  EXPECT_EQ(only_edge(ledger.ages().reuse_gap), 4U) << "three seconds, below 5";
  EXPECT_DOUBLE_EQ(ledger.ages().reuse_gap.seconds(), 3);
  ledger.drop(entry, 1 + 6 * kSecond);
  EXPECT_EQ(only_edge(ledger.ages().lifetime), SIZE_MAX);
  const Handle next = *ledger.take(1 + 30 * kSecond);  // evicts it
  EXPECT_EQ(only_edge(ledger.ages().lifetime), 6U) << "30 s, its edge is among the smaller";
  EXPECT_DOUBLE_EQ(ledger.ages().lifetime.seconds(), 30);
  EXPECT_EQ(only_edge(ledger.ages().idle_before_evict), 6U);
  EXPECT_DOUBLE_EQ(ledger.ages().idle_before_evict.seconds(), 24);
  ledger.drop(next, 1 + 31 * kSecond);
  ledger.take(1 + 32 * kSecond);
  EXPECT_DOUBLE_EQ(ledger.ages().lifetime.seconds(), 30) << "a block that was given back was not evicted";
}

RC_GTEST_PROP(LedgerProperty, EveryInvariantHoldsAfterEveryMove,
              (const std::vector<uint32_t>& dice, bool cut)) {
  RandomWalk walk(cut ? 2 : 64);
  for (const uint32_t d : dice) walk.step(d);
}

TEST(LedgerProperty, ALongWalkMakesEveryMoveAndLeavesNothingBehind) {
  RandomWalk walk(2);
  uint64_t state = 1;
  for (int i = 0; i < 100'000; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    walk.step(static_cast<uint32_t>(state >> 33));
  }
  for (size_t m = 0; m < kMoveCount; ++m)
    EXPECT_GE(walk.ledger().moves(static_cast<Move>(m)), 100U) << "move " << m;
  walk.finish();
  const LedgerStats left = walk.ledger().stats();
  EXPECT_EQ(left.free, left.total);
  EXPECT_EQ(left.held + left.cached + left.both + left.shared + left.waste_tokens, 0U);
}

}  // namespace
}  // namespace tally::kv
