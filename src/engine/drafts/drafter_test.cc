#include "engine/drafts/drafter.h"

#include <gtest/gtest.h>

#include <vector>

namespace tally::engine {
namespace {

RowPrices flat_until(uint32_t rows, double then) {
  std::vector<double> us;
  for (const uint32_t r : RowPrices::kMeasuredRows) us.push_back(1000 + (r > rows ? then * (r - rows) : 0));
  return RowPrices(us);
}

// Guesses as many as there is room for, all in one grade.
class Always final : public Proposer {
 public:
  Proposal propose(const Ask& ask) override {
    std::ranges::fill(ask.into, TokenId{1});
    return {static_cast<uint32_t>(ask.into.size()), 0};
  }
  void observe(uint32_t, std::span<const TokenId>, bool) override {}
  uint32_t grades() const override { return 1; }
  DraftSource source() const override { return DraftSource::kLookup; }
};

template <class Kind, class... Args>
std::vector<std::unique_ptr<Proposer>> one(Args... args) {
  std::vector<std::unique_ptr<Proposer>> out;
  out.push_back(std::make_unique<Kind>(args...));
  return out;
}

TEST(RowPrices, LieOnLinesAndGoOn) {
  const RowPrices prices(std::vector<double>{100, 110, 120, 140});  // of 1, 2, 3, 4 rows
  EXPECT_DOUBLE_EQ(prices.us(1), 100);
  EXPECT_DOUBLE_EQ(prices.us(4), 140);
  EXPECT_DOUBLE_EQ(prices.us(5), 160);
  EXPECT_DOUBLE_EQ(prices.us(32), 140 + 28 * 20);
  const RowPrices one(std::vector<double>{100});
  EXPECT_DOUBLE_EQ(one.us(32), 100);
  const RowPrices falls(std::vector<double>{100, 90, 120});  // a measurement that was disturbed
  EXPECT_DOUBLE_EQ(falls.us(2), 100);
  EXPECT_DOUBLE_EQ(falls.us(3), 120);
}

TEST(RowPrices, FollowWhatStepsTake) {
  RowPrices prices(std::vector<double>{100, 110, 120, 140});
  for (int i = 0; i < 200; ++i) prices.observe(2, 220);
  EXPECT_NEAR(prices.us(2), 220, 2);
  EXPECT_NEAR(prices.us(1), 200, 15);  // what slows one count down slows others
  const double before = prices.us(2);
  prices.observe(2, 100'000);  // one step out of the ordinary
  EXPECT_LT(prices.us(2), 1.2 * before);
}

TEST(Choose, TakesEveryRowThatCostsNothing) {
  std::vector<DraftCandidate> one = {{.chance = 0.9, .drafts = 16}};
  choose_drafts(one, 1, flat_until(6, 500));
  EXPECT_EQ(one[0].drafts, 5u);
}

TEST(Choose, NothingThatDoesNotPay) {
  std::vector<DraftCandidate> one = {{.chance = 0.3, .drafts = 8}};
  choose_drafts(one, 1, flat_until(1, 400));  // 1.3 tokens for 1.4 of the time
  EXPECT_EQ(one[0].drafts, 0u);
  std::vector<DraftCandidate> likely = {{.chance = 0.95, .drafts = 8}};
  choose_drafts(likely, 1, flat_until(1, 400));
  EXPECT_GT(likely[0].drafts, 0u);
}

// A dear second row does not hide that eight are cheap together.
TEST(Choose, LooksBehindAStep) {
  std::vector<double> us = {1000, 1900, 1900, 1900, 1900, 1900, 1900, 1900, 1900, 1900};
  std::vector<DraftCandidate> one = {{.chance = 0.95, .drafts = 16}};
  choose_drafts(one, 1, RowPrices(us));
  EXPECT_EQ(one[0].drafts, 16u);
}

TEST(Choose, TheLikelierSequenceFirst) {
  std::vector<DraftCandidate> two = {{.chance = 0.4, .drafts = 8}, {.chance = 0.9, .drafts = 8}};
  choose_drafts(two, 2, flat_until(6, 2000));
  EXPECT_EQ(two[0].drafts, 0u);
  EXPECT_EQ(two[1].drafts, 4u);
}

TEST(Choose, FadesOutAsTheBatchGrows) {
  uint32_t before = 16;
  for (const uint32_t batch : {1u, 2u, 3u, 4u, 6u, 8u, 31u, 32u, 64u}) {
    std::vector<DraftCandidate> all(batch, {.chance = 0.6, .drafts = 16});
    choose_drafts(all, batch, flat_until(6, 150));
    uint32_t most = 0;
    for (const DraftCandidate& c : all) most = std::max(most, c.drafts);
    EXPECT_LE(most, before) << batch;
    EXPECT_GE(most, batch == 1 ? 3u : 0u);
    EXPECT_LE(most, batch >= 8 ? 0u : 16u) << batch;
    before = most;
  }
}

// Whatever the numbers: the choice is as good as the best of all pairs of counts.
TEST(Choose, IsTheBestThereIs) {
  for (const double a : {0.1, 0.35, 0.6, 0.9, 0.99}) {
    for (const double b : {0.2, 0.5, 0.95}) {
      for (const double slope : {0.0, 60.0, 200.0, 700.0}) {
        const RowPrices prices = flat_until(4, slope);
        std::vector<DraftCandidate> two = {{a, 6}, {b, 5}};
        choose_drafts(two, 3, prices);
        const auto rate = [&](uint32_t x, uint32_t y) {
          return (1 + expected_tokens(a, x) + expected_tokens(b, y)) / prices.us(3 + x + y);
        };
        double best = rate(0, 0);
        for (uint32_t x = 0; x <= 6; ++x)
          for (uint32_t y = 0; y <= 5; ++y) best = std::max(best, rate(x, y));
        EXPECT_GE(rate(two[0].drafts, two[1].drafts) * kWorthMargin, best) << a << ' ' << b << ' ' << slope;
      }
    }
  }
}

TEST(Acceptance, PausesTheHopelessAndTriesAgain) {
  Acceptance a;
  uint32_t known = 100, tries = 0;
  for (; a.chance(known) > 0 && tries < 100; ++tries) a.observe(4, 0, ++known);
  EXPECT_GE(tries, 16u);
  EXPECT_LT(tries, 30u);
  EXPECT_TRUE(a.pauses(known + 63));
  EXPECT_FALSE(a.pauses(known + 64));
  a.observe(1, 0, known += 64);  // once
  EXPECT_TRUE(a.pauses(known + 1));
  for (int i = 0; i < 3; ++i) a.observe(4, 4, known += 64);
  EXPECT_FALSE(a.pauses(known + 1));
}

TEST(Acceptance, DraftsBehindTheFirstWrongOneSayNothing) {
  Acceptance long_one, short_one;  // three of the four that were tested
  for (uint32_t i = 0; i < 200; ++i) long_one.observe(16, 3, i), short_one.observe(4, 3, i);
  EXPECT_DOUBLE_EQ(long_one.chance(200), short_one.chance(200));
  EXPECT_NEAR(long_one.chance(200), 0.73, 0.03);
}

// One draft that is wrong says as much as one that is right.
TEST(Acceptance, MovesByWhatWasTested) {
  Acceptance one, three;
  one.observe(1, 1, 1), one.observe(1, 1, 2), one.observe(1, 1, 3);
  three.observe(3, 3, 3);
  EXPECT_DOUBLE_EQ(one.chance(4), three.chance(4));
  Acceptance mixed, apart;
  mixed.observe(3, 2, 3);
  apart.observe(2, 2, 3), apart.observe(1, 0, 3);
  EXPECT_DOUBLE_EQ(mixed.chance(4), apart.chance(4));
}

TEST(Drafter, SeatsComeAndGo) {
  Drafter drafter({2, 4, 1000}, one<Always>(), flat_until(8, 500));
  const std::vector<TokenId> known(5);
  const int32_t a = drafter.take_seat(SeqId{7}, known), b = drafter.take_seat(SeqId{8}, known);
  EXPECT_NE(a, Drafter::kNoSeat);
  EXPECT_NE(b, a);
  EXPECT_EQ(drafter.take_seat(SeqId{9}, known), Drafter::kNoSeat);
  EXPECT_TRUE(drafter.drafts(Drafter::kNoSeat).empty());
  drafter.begin_step();
  drafter.propose(a, known);
  drafter.choose(2);
  EXPECT_EQ(drafter.drafts(a).size(), 4u);  // its own bound
  EXPECT_TRUE(drafter.drafts(b).empty());
  drafter.leave_seat(a);
  EXPECT_EQ(drafter.taken().size(), 1u);
  EXPECT_EQ(drafter.take_seat(SeqId{9}, known), a);
  EXPECT_TRUE(drafter.drafts(a).empty());
}

TEST(Drafter, ALikelySequenceGetsMoreThanAnUnlikelyOne) {
  Drafter drafter({2, 8, 1000}, one<Always>(), flat_until(6, 500));
  std::vector<TokenId> known(5);
  const int32_t good = drafter.take_seat(SeqId{1}, known), bad = drafter.take_seat(SeqId{2}, known);
  for (int i = 0; i < 8; ++i) {
    drafter.verified(good, 4, 4);
    drafter.verified(bad, 4, 0);
  }
  drafter.begin_step();
  drafter.propose(good, known);
  drafter.propose(bad, known);
  drafter.choose(2);
  EXPECT_GT(drafter.drafts(good).size(), drafter.drafts(bad).size());
  for (int i = 0; i < 24; ++i) drafter.verified(bad, 4, 0);
  EXPECT_EQ(drafter.paused(), 1u);  // of what is forced nothing was tried yet
}

class Wild final : public Proposer {
 public:
  explicit Wild(int32_t id) : id_(id) {}
  Proposal propose(const Ask& ask) override {
    std::ranges::fill(ask.into, TokenId{1});
    ask.into[2] = TokenId{id_};
    return {static_cast<uint32_t>(ask.into.size()), 0};
  }
  void observe(uint32_t, std::span<const TokenId>, bool) override {}
  uint32_t grades() const override { return 1; }
  DraftSource source() const override { return DraftSource::kLookup; }

 private:
  int32_t id_;
};

TEST(Drafter, WhatIsNoTokenEndsADraft) {
  for (const int32_t id : {-1, 1000, INT32_MAX, INT32_MIN}) {
    Drafter drafter({1, 8, 1000}, one<Wild>(id), flat_until(32, 0));
    const std::vector<TokenId> known(5);
    const int32_t seat = drafter.take_seat(SeqId{1}, known);
    drafter.begin_step();
    drafter.propose(seat, known);
    drafter.choose(1);
    EXPECT_EQ(drafter.drafts(seat).size(), 2u) << id;
  }
}

TEST(Drafter, WhatIsForcedGoesFirst) {
  Drafter drafter({1, 4, 1000}, one<Always>(), flat_until(32, 0));
  const std::vector<TokenId> known(5), forced = {TokenId{7}, TokenId{8}, TokenId{9}};
  const int32_t seat = drafter.take_seat(SeqId{1}, known);
  drafter.begin_step();
  drafter.propose(seat, known, forced);
  drafter.choose(1);
  EXPECT_TRUE(std::ranges::equal(drafter.drafts(seat), forced));
  for (int i = 0; i < 40; ++i) drafter.verified(seat, 3, 0);  // and has a history of its own
  drafter.begin_step();
  drafter.propose(seat, known, forced);
  drafter.choose(1);
  EXPECT_TRUE(drafter.drafts(seat).empty());
  drafter.begin_step();
  drafter.propose(seat, known);
  drafter.choose(1);
  EXPECT_EQ(drafter.drafts(seat).size(), 4u);
}

// Takes its time for each draft, and has as many as are asked for, or fewer.
class Slow final : public Proposer {
 public:
  Slow(double us, uint32_t most) : us_(us), most_(most) {}
  Proposal propose(const Ask& ask) override {
    asked = static_cast<uint32_t>(ask.into.size());
    std::ranges::fill(ask.into, TokenId{2});
    return {std::min(asked, most_), 0};
  }
  void observe(uint32_t, std::span<const TokenId>, bool) override {}
  uint32_t grades() const override { return 1; }
  DraftSource source() const override { return DraftSource::kLookup; }
  double us_per_draft() const override { return us_; }
  uint32_t asked = 0;

 private:
  double us_;
  uint32_t most_;
};

TEST(Drafter, WhoTakesTimeIsAskedForWhatPays) {
  for (const double us : {1.0, 100.0, 400.0, 5000.0}) {
    auto proposers = one<Slow>(us, 16u);
    const Slow& slow = static_cast<const Slow&>(*proposers[0]);
    Drafter drafter({1, 8, 1000}, std::move(proposers), flat_until(32, 0));
    const std::vector<TokenId> known(5);
    const int32_t seat = drafter.take_seat(SeqId{1}, known);
    drafter.begin_step();
    drafter.propose(seat, known);
    EXPECT_EQ(slow.asked, 0u) << "before it is known how many pay";
    drafter.choose(1);
    std::vector<DraftCandidate> wanted = {{.chance = 0.5, .drafts = 8, .us = us}};
    choose_drafts(wanted, 1, flat_until(32, 0));
    EXPECT_EQ(drafter.drafts(seat).size(), wanted[0].drafts) << us;
    EXPECT_EQ(slow.asked, wanted[0].drafts);
    EXPECT_EQ(slow.asked == 0, us > 1000);
  }
}

TEST(Drafter, TheFirstThatHasSomethingToSayIsHeard) {
  class Silent final : public Proposer {
   public:
    Proposal propose(const Ask&) override { return {}; }
    void observe(uint32_t, std::span<const TokenId>, bool) override {}
    uint32_t grades() const override { return 3; }
    DraftSource source() const override { return DraftSource::kLookup; }
  };
  for (const bool silent : {false, true}) {
    auto proposers = silent ? one<Silent>() : one<Always>();
    proposers.push_back(std::make_unique<Slow>(1, 3));
    Drafter drafter({1, 8, 1000}, std::move(proposers), flat_until(32, 0));
    const std::vector<TokenId> known(5);
    const int32_t seat = drafter.take_seat(SeqId{1}, known);
    drafter.begin_step();
    drafter.propose(seat, known);
    drafter.choose(1);
    ASSERT_FALSE(drafter.drafts(seat).empty());
    EXPECT_EQ(drafter.drafts(seat)[0], silent ? TokenId{2} : TokenId{1});
    EXPECT_EQ(drafter.drafts(seat).size(), silent ? 3u : 8u);
  }
}

TEST(Drafter, TheRatioIsTokensASecondAgainstPlain) {
  Drafter drafter({1, 8, 1000}, one<Always>(), flat_until(32, 0));
  EXPECT_EQ(drafter.ratio(), 1);
  drafter.observe({.sequences = 1, .rows = 1, .tokens = 1, .taken_us = 5000});
  EXPECT_EQ(drafter.ratio(), 1);
  for (int i = 0; i < 1500; ++i) drafter.observe({.sequences = 1, .rows = 4, .tokens = 3, .taken_us = 1000});
  EXPECT_NEAR(drafter.ratio(), 3, 0.01);
}

}  // namespace
}  // namespace tally::engine
