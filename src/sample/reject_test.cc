// Rejection sampling: whatever the guesses are drawn from, tokens are distributed as those of `pick`. The
// oracle is the chain's distribution, worked out in double by its formulas; the proof is Pearson's statistic.
#include "sample/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

namespace tally::sample {
namespace {

constexpr size_t kEight = 8;
constexpr uint32_t kTrials = 100'000;
constexpr double kSafe = 1e-6;  // of a right sampler so many runs fail

using Row = std::vector<float>;

// The chance that a chi-square of so many degrees is above: the cube root of it is nearly normal.
double tail(double statistic, double degrees) {
  const double variance = 2 / (9 * degrees);
  const double z = (std::cbrt(statistic / degrees) - (1 - variance)) / std::sqrt(variance);
  return 0.5 * std::erfc(z / std::sqrt(2.));
}

// What `pick` keeps and how likely each is.
std::vector<double> exact(const Row& logits, const Params& params) {
  std::vector<size_t> order(kEight);
  for (size_t i = 0; i < kEight; ++i) order[i] = i;
  std::ranges::sort(
      order, [&](size_t a, size_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; });
  if (params.top_k > 0) order.resize(std::min<size_t>(order.size(), static_cast<size_t>(params.top_k)));
  std::vector<double> weights(kEight, 0.);
  double total = 0, kept = 0;
  for (const size_t i : order) {
    weights[i] = std::exp((static_cast<double>(logits[i]) - static_cast<double>(logits[order[0]])) /
                          static_cast<double>(params.temperature));
    total += weights[i];
  }
  double before = 0;
  for (const size_t i : order) {
    const bool cut =
        before >= static_cast<double>(params.top_p) * total || weights[i] < static_cast<double>(params.min_p);
    before += weights[i];
    if (cut) weights[i] = 0;
    kept += weights[i];
  }
  for (double& w : weights) w /= kept;
  return weights;
}

// How unlikely the counts are; 0 where something came that cannot.
double likelihood(const std::vector<uint64_t>& counts, const std::vector<double>& chances) {
  double statistic = 0, degrees = -1, draws = 0;
  for (const uint64_t count : counts) draws += static_cast<double>(count);
  for (size_t i = 0; i < kEight; ++i) {
    const double expected = chances[i] * draws, seen = static_cast<double>(counts[i]);
    if (expected == 0 && seen > 0) return 0;
    if (expected == 0) continue;
    statistic += (seen - expected) * (seen - expected) / expected;
    ++degrees;
  }
  return degrees < 1 ? 1 : tail(statistic, degrees);
}

struct Shapes {
  std::string name;
  Row p, q;  // logits
  Params params = {};
};

std::vector<Shapes> shapes() {
  const Row flat(kEight, 0.f), steep = {3, 2, 1, 0, -1, -2, -2.5f, -3},
                               other = {-3, -1, 2, 1.5f, 0, 1, -2, 2.5f};
  Params cool, cut, few, least;
  cool.temperature = 0.6f, cut.top_p = 0.8f, few.top_k = 3, least.min_p = 0.2f;
  Params all = cool;
  all.top_k = 6, all.top_p = 0.95f, all.min_p = 0.02f;
  return {{"the same", steep, steep},
          {"flat and steep", flat, steep},
          {"steep and flat", steep, flat},
          {"far apart", steep, other},
          {"cool", other, steep, cool},
          {"nucleus", steep, other, cut},
          {"the best three", other, steep, few},
          {"min_p", steep, flat, least},
          {"all of them", other, flat, all}};
}

// Tokens of one position, by the seed; `guessed` false: the guess is always the token 2, and was not drawn.
struct Emitted {
  std::vector<uint64_t> counts = std::vector<uint64_t>(kEight, 0);
  double held = 0;
};
Emitted emitted(const Shapes& c, uint32_t generated, bool guessed) {
  Scratch scratch(kEight);
  Emitted out;
  const std::vector<TokenId> known(generated, TokenId{0});
  Params params = c.params;
  std::vector<float> chances(kEight);
  for (uint32_t seed = 1; seed <= kTrials; ++seed) {
    params.seed = seed;
    const Context context{{}, known, {}, {}};
    Row q = c.q, p = c.p;
    Guess guess{TokenId{2}};
    if (guessed) guess = {draw_guess(q, params, context, chances, scratch).id, chances};
    const Pick pick = pick_or_accept(p, params, context, guess, scratch);
    ++out.counts[static_cast<size_t>(raw(pick.id))];
    out.held += pick.id == guess.id ? 1. / kTrials : 0;
  }
  return out;
}

TEST(RejectionSampling, TokensAreDistributedAsWithoutGuesses) {
  for (const Shapes& c : shapes()) {
    const std::vector<double> p = exact(c.p, c.params), q = exact(c.q, c.params);
    double common = 0;
    for (size_t i = 0; i < kEight; ++i) common += std::min(p[i], q[i]);
    for (const uint32_t position : {0u, 7u}) {
      const Emitted drawn = emitted(c, position, true), fixed = emitted(c, position, false);
      EXPECT_GT(likelihood(drawn.counts, p), kSafe) << c.name << ", position " << position;
      EXPECT_GT(likelihood(fixed.counts, p), kSafe) << c.name << ", position " << position << ", not drawn";
      EXPECT_NEAR(drawn.held, common, 0.01) << c.name << ": one less the distance of the two";
      EXPECT_NEAR(fixed.held, p[2], 0.01) << c.name;
    }
  }
}

// The same guesses, compared: one holds where a draw that has not looked at it happens to give the same
// token.
double held_by_comparing(const Shapes& c) {
  Scratch scratch(kEight);
  Params params = c.params;
  std::vector<float> chances(kEight);
  uint32_t held = 0;
  for (uint32_t seed = 1; seed <= kTrials; ++seed) {
    params.seed = seed;
    Row q = c.q, p = c.p;
    const TokenId guess = draw_guess(q, params, {}, chances, scratch).id;
    held += pick(p, params, {}, scratch).id == guess ? 1 : 0;
  }
  return static_cast<double>(held) / kTrials;
}

// What it is there for: of guesses that were drawn it holds the sum of min(p, q), comparing that of p q.
TEST(RejectionSampling, HoldsMoreGuessesThanComparing) {
  int twice = 0;
  for (const Shapes& c : shapes()) {
    const std::vector<double> p = exact(c.p, c.params), q = exact(c.q, c.params);
    double common = 0, both = 0;
    for (size_t i = 0; i < kEight; ++i) common += std::min(p[i], q[i]), both += p[i] * q[i];
    const double accepted = emitted(c, 0, true).held, compared = held_by_comparing(c);
    EXPECT_NEAR(accepted, common, 0.01) << c.name;
    EXPECT_NEAR(compared, both, 0.01) << c.name;
    EXPECT_GE(accepted, compared) << c.name;  // both are 0 where the two have no token in common
    twice += accepted > 2 * compared ? 1 : 0;
  }
  EXPECT_GE(twice, 5);
}

// What the tests above would not see they could not prove: the errors that are easily made fail it.
TEST(RejectionSampling, TheProofSeesWhatIsWrong) {
  const Shapes c = shapes()[3];
  const std::vector<double> p = exact(c.p, c.params), q = exact(c.q, c.params);
  std::vector<double> again(kEight), guessed(kEight);
  double held = 0;
  for (size_t i = 0; i < kEight; ++i) held += std::min(p[i], q[i]);
  for (size_t i = 0; i < kEight; ++i) again[i] = std::min(p[i], q[i]) + (1 - held) * p[i];
  const auto counts = [](const std::vector<double>& chances) {
    std::vector<uint64_t> out;
    for (const double chance : chances) out.push_back(static_cast<uint64_t>(std::lround(chance * kTrials)));
    return out;
  };
  EXPECT_LT(likelihood(counts(again), p), kSafe) << "drawn again from p";
  EXPECT_LT(likelihood(counts(q), p), kSafe) << "every guess holds";
  EXPECT_GT(likelihood(counts(p), p), 0.5);
}

// Two guesses in a row: the second token after the first, and both as without guesses, together.
TEST(RejectionSampling, PositionsDoNotDependOnEachOther) {
  const Row p = {1, 0, -1, 0.5f, -2, 0, 0, 0}, q = {0, 1, 0, -1, 0.5f, 0, -3, 0};
  Scratch scratch(kEight);
  std::vector<std::vector<uint64_t>> second(kEight, std::vector<uint64_t>(kEight, 0));
  std::vector<float> chances(2 * kEight);
  Params params;
  for (uint32_t seed = 1; seed <= kTrials; ++seed) {
    params.seed = seed;
    std::vector<TokenId> known;
    const auto guess_at = [&](size_t i) {
      Row row = q;
      const auto room = std::span(chances).subspan(i * kEight, kEight);
      const std::vector<TokenId> generated(i, TokenId{0});
      return Guess{draw_guess(row, params, {{}, generated, {}, {}}, room, scratch).id, room};
    };
    const Guess guesses[] = {guess_at(0), guess_at(1)};  // the second is drawn whatever becomes of the first
    for (const Guess& guess : guesses) {
      Row row = p;
      known.push_back(pick_or_accept(row, params, {{}, known, {}, {}}, guess, scratch).id);
    }
    ++second[static_cast<size_t>(raw(known[0]))][static_cast<size_t>(raw(known[1]))];
  }
  for (const auto& counts : second) EXPECT_GT(likelihood(counts, exact(p, params)), kSafe);
}

TEST(RejectionSampling, KeepsToWhatTheRequestSays) {
  Scratch scratch(kEight);
  Params params;
  params.logprobs = 2, params.min_tokens = 5;
  const std::vector<TokenId> ends = {TokenId{7}}, suppressed = {TokenId{0}};
  const std::vector<uint32_t> allowed = {0b10101110};  // 1, 2, 3, 5, 7
  const Row logits = {4, 3, 2, 1, 5, 0, 6, 9};
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    params.seed = seed;
    for (const int32_t guessed : {0, 2, 4, 6, 7}) {
      Row row = logits;
      Context context{{}, {}, ends, suppressed, 0, allowed};
      const Pick pick = pick_or_accept(row, params, context, {TokenId{guessed}}, scratch);
      ASSERT_TRUE(pick.finite);
      const int32_t id = raw(pick.id);
      ASSERT_TRUE(id == 1 || id == 2 || id == 3 || id == 5) << id;
      const Score raw_row = score(logits, pick.id, 0, scratch);
      ASSERT_EQ(pick.logprob, raw_row.logprob);
      ASSERT_EQ(pick.top_count, 2);
    }
  }
  params.temperature = 0;
  Row row = logits, same = logits;
  const Context context{{}, {}, ends, suppressed, 0, allowed};
  EXPECT_EQ(pick_or_accept(row, params, context, {TokenId{3}}, scratch).id,
            pick(same, params, context, scratch).id);
  Row broken(kEight, std::nanf(""));
  EXPECT_FALSE(pick_or_accept(broken, params, context, {TokenId{3}}, scratch).finite);
}

}  // namespace
}  // namespace tally::sample
