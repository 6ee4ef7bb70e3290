// The numbered changes of the index: what is kept, and that replaying them gives what can be found.

#include "kv/event_ring.h"

#include "kv/random_walk_test_support.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

namespace tally::kv {
namespace {

using Kind = Event::Kind;

TEST(EventRing, KeepsTheLastOnesUnderTheirNumbers) {
  EventRing ring(3, 2);
  EXPECT_EQ(ring.first(), 1U);
  EXPECT_EQ(ring.last(), 0U);
  for (int i = 1; i <= 8; ++i) {
    if (i % 3 == 0) {
      ring.add({.kind = Kind::kBlockRemoved, .hash = static_cast<uint64_t>(i)}, {});
    } else {
      ring.add({.hash = static_cast<uint64_t>(i)}, ids_of({i, -i}));
    }
    EXPECT_EQ(ring.last(), static_cast<uint64_t>(i));
    EXPECT_EQ(ring.size(), static_cast<uint64_t>(std::min(i, 3)));
  }
  EXPECT_EQ(ring.first(), 6U);
  for (uint64_t n = 6; n <= 8; ++n) {
    EXPECT_EQ(ring[n].hash, n);
    const auto ids = ring.ids(n);
    const int i = static_cast<int>(n);
    EXPECT_EQ(Ids(ids.begin(), ids.end()), n == 6 ? Ids{} : ids_of({i, -i}));
  }
  EXPECT_DEATH(ring[5], "no such event");
  EXPECT_DEATH(ring.ids(9), "no such event");
  EXPECT_DEATH(ring.add({}, ids_of({1})), "ids of a stored block");
}

TEST(EventRing, OfNoneNumbersNothing) {
  EventRing ring(0, 2);
  ring.add({}, ids_of({1, 2}));
  EXPECT_EQ(ring.last(), 0U);
  EXPECT_EQ(ring.size(), 0U);
  EXPECT_EQ(EventRing::bytes(0, 64), 0U);
}

// A reader who knows the ledger by its events alone.
class Follower {
 public:
  void follow(const Ledger& ledger) {
    const EventRing& ring = ledger.events();
    for (; seen_ < ring.last(); ++seen_) apply(ring[seen_ + 1], ring.ids(seen_ + 1));
  }

  // What it knows is what is registered, with the same tokens behind the same parents.
  void expect_equal(const Ledger& ledger) const {
    size_t registered = 0;
    for (uint32_t id = 0; id < ledger.blocks(); ++id) {
      const BlockState state = ledger.info(BlockId{id}).state;
      registered += state == BlockState::kCached || state == BlockState::kBoth;
    }
    RC_ASSERT(registered == entries_.size());
    for (const auto& [id, entry] : entries_) {
      RC_ASSERT(ledger.is_entry(entry.event.block));
      const auto ids = ledger.entry_ids(entry.event.block);
      RC_ASSERT(Ids(ids.begin(), ids.end()) == entry.ids);
    }
  }
  uint64_t seen() const { return seen_; }

 private:
  struct Entry {
    Event event;
    Ids ids;
  };

  void apply(const Event& event, std::span<const TokenId> ids) {
    if (event.kind == Kind::kAllBlocksCleared) return entries_.clear();
    const uint32_t id = raw(event.block.id);
    if (event.kind == Kind::kBlockRemoved) {
      RC_ASSERT(entries_.contains(id));
      RC_ASSERT(entries_[id].event.block == event.block);
      RC_ASSERT(entries_[id].event.hash == event.hash);
      entries_.erase(id);
      for (const auto& [other, entry] : entries_) RC_ASSERT(!(entry.event.parent == event.block));
      return;
    }
    RC_ASSERT(!entries_.contains(id));
    if (!(event.parent == kRoot)) {
      const auto parent = entries_.find(raw(event.parent.id));
      RC_ASSERT(parent != entries_.end());
      RC_ASSERT(parent->second.event.block == event.parent);
      RC_ASSERT(parent->second.event.hash == event.parent_hash);
    }
    entries_[id] = {event, Ids(ids.begin(), ids.end())};
  }

  uint64_t seen_ = 0;
  std::map<uint32_t, Entry> entries_;
};

RC_GTEST_PROP(EventRingProperty, ReplayedFromTheStartGivesTheEntries, (bool cut)) {
  const auto dice =
      *rc::gen::scale(8.0, rc::gen::container<std::vector<uint32_t>>(rc::gen::arbitrary<uint32_t>()));
  RandomWalk walk(cut ? 2 : 64, 1 << 14);
  Follower beside;
  for (const uint32_t d : dice) {
    walk.step(d);
    beside.follow(walk.ledger());
    beside.expect_equal(walk.ledger());
  }
  Follower after;
  after.follow(walk.ledger());
  after.expect_equal(walk.ledger());
}

TEST(EventRing, ALongWalkIsFollowedThroughARingOfSixtyFour) {
  RandomWalk walk(64, 64);
  Follower follower;
  uint64_t state = 7;
  for (int i = 0; i < 20'000; ++i) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    walk.step(static_cast<uint32_t>(state >> 33));
    follower.follow(walk.ledger());
    follower.expect_equal(walk.ledger());
  }
  EXPECT_GT(follower.seen(), 3'000U);
  const Ledger& ledger = walk.ledger();
  std::map<Kind, int> kinds;
  for (uint64_t n = ledger.events().first(); n <= ledger.events().last(); ++n)
    ++kinds[ledger.events()[n].kind];
  EXPECT_GT(kinds[Kind::kBlockStored], 0);
  EXPECT_GT(kinds[Kind::kBlockRemoved], 0);
  EXPECT_EQ(ledger.events().size(), 64U);
}

// Removals in a reset are one event, and so is a reset of nothing.
TEST(EventRing, AResetIsOneEvent) {
  Ledger ledger({4, 2, true, 64, 16});
  BlockTable table;
  table.push(*ledger.take(1));
  ledger.commit_rows(table.back(), 2);
  ledger.register_block(table.back(), {kRoot, &kSpace, ids_of({1, 2})});
  ledger.reset_prefix();
  ledger.reset_prefix();
  ASSERT_EQ(ledger.events().last(), 3U);
  EXPECT_EQ(ledger.events()[1].kind, Kind::kBlockStored);
  EXPECT_EQ(ledger.events()[2].kind, Kind::kAllBlocksCleared);
  EXPECT_EQ(ledger.events()[3].kind, Kind::kAllBlocksCleared);
  EXPECT_NE(ledger.events()[1].space, 0U);
}

}  // namespace
}  // namespace tally::kv
