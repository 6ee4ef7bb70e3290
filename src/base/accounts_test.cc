#include "base/accounts.h"

#include <gtest/gtest.h>

namespace tally::base {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST(Accounts, ReservesAlignedZeroedMemoryAndGivesItBack) {
  Accounts accounts(64 * kMiB);
  {
    Arena arena = accounts.reserve(Account::kWeights, "packed", 5 * kMiB + 1).value();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.data()) % (2 * kMiB), 0u);
    EXPECT_GE(arena.size(), 5 * kMiB + 1);
    for (size_t i = 0; i < arena.size(); i += 1000) ASSERT_EQ(arena.data()[i], std::byte{0});
    arena.data()[arena.size() - 1] = std::byte{1};
    EXPECT_EQ(accounts.use(Account::kWeights).reserved, arena.size());
    EXPECT_EQ(accounts.use(Account::kWeights).parts.at(0).name, "packed");
    Arena moved = std::move(arena);
    EXPECT_EQ(accounts.reserved_bytes(), moved.size());
  }
  EXPECT_EQ(accounts.reserved_bytes(), 0u);
  EXPECT_GE(accounts.use(Account::kWeights).peak, 5 * kMiB);
}

TEST(Accounts, PartsAreOfTheAccount) {
  Accounts accounts(64 * kMiB);
  accounts.plan(Account::kRuntime, "streams", 7);
  accounts.plan(Account::kRuntime, "tokenizer", 5);
  accounts.plan(Account::kRuntime, "streams", 9);  // planned anew, not twice
  for (const int64_t bytes : {3, 4, -6}) accounts.book(Account::kRuntime, "streams", bytes);
  AccountUse use = accounts.use(Account::kRuntime);
  EXPECT_EQ(use.planned, 14u);
  EXPECT_EQ(use.reserved, 1u);
  EXPECT_EQ(use.used, 1u);
  EXPECT_EQ(use.peak, 7u);
  ASSERT_EQ(use.parts.size(), 2u);
  EXPECT_EQ(use.parts[0].name, "streams");
  EXPECT_EQ(use.parts[0].planned, 9u);
  EXPECT_EQ(use.parts[0].reserved, 1u);
  EXPECT_EQ(use.parts[0].peak, 7u);
  EXPECT_EQ(use.parts[0].bookings, 2u);
  EXPECT_EQ(use.parts[1].reserved, 0u);
  const Arena arena = accounts.reserve(Account::kKv, "pool", 5000).value();
  EXPECT_EQ(arena.size(), Accounts::arena_bytes(5000));
  EXPECT_EQ(accounts.use(Account::kKv).parts[0].reserved, 8192u);
}

TEST(Accounts, TheCapHoldsOverTheSum) {
  Accounts accounts(8 * kMiB);
  const Arena first = accounts.reserve(Account::kWeights, "packed", 6 * kMiB).value();
  const auto second = accounts.reserve(Account::kKv, "pool", 3 * kMiB);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
  EXPECT_NE(second.error().message.find("kv (pool)"), std::string::npos) << second.error().message;
  EXPECT_TRUE(accounts.reserve(Account::kKv, "pool", 2 * kMiB));
  EXPECT_FALSE(accounts.reserve(Account::kKv, "pool", UINT64_MAX - 4096));
}

TEST(Accounts, BooksAddUp) {
  Accounts accounts(kMiB);
  accounts.book(Account::kRuntime, "tokenizer", 1000);
  accounts.book(Account::kRuntime, "streams", 500);
  accounts.book(Account::kRuntime, "streams", -500);
  EXPECT_EQ(accounts.use(Account::kRuntime).reserved, 1000u);
  EXPECT_EQ(accounts.use(Account::kRuntime).peak, 1500u);
}

#if defined(TALLY_INSTRUMENTED_THREAD)
constexpr uint64_t kSlack = 80 * kMiB;  // the shadow of what is touched is anonymous memory too
#else
constexpr uint64_t kSlack = 8 * kMiB;
#endif

TEST(ProcessMemory, SeesAnArena) {
  Accounts accounts(128 * kMiB);
  const uint64_t before = process_memory().rss_anon;
  const Arena arena = accounts.reserve(Account::kKv, "pool", 64 * kMiB).value();
  const uint64_t grown = process_memory().rss_anon - before;
  EXPECT_GE(grown, 63 * kMiB);
  EXPECT_LE(grown, 64 * kMiB + kSlack);
}

TEST(Accounts, AnArenaOfItsOwnerIsTouchedWhenAsked) {
  Accounts accounts(2048 * kMiB);
  ThreadPool pool(2);
  constexpr uint64_t kBytes = 64 * kMiB + 4096;
  const uint64_t before = process_memory().rss_anon;
  Arena arena = accounts.reserve(Account::kKv, "pool", kBytes, FirstTouch::kByOwner).value();
  EXPECT_LE(process_memory().rss_anon - before, kSlack);
  uint64_t told = 0;
  EXPECT_TRUE(arena.touch(pool, [&](uint64_t bytes) { return told = bytes, true; }));
  EXPECT_EQ(told, kBytes);
  EXPECT_GE(process_memory().rss_anon - before, kBytes - kMiB);

  const uint64_t so_far = process_memory().rss_anon;
  Arena large = accounts.reserve(Account::kKv, "large", 1024 * kMiB, FirstTouch::kByOwner).value();
  EXPECT_FALSE(large.touch(pool, [](uint64_t) { return false; })) << "stopped at the first question";
  EXPECT_LE(process_memory().rss_anon - so_far, 768 * kMiB) << "256 MiB, and as much of shadow";
}

}  // namespace
}  // namespace tally::base
