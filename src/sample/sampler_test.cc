#include "sample/sampler.h"

#include "sample/philox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <new>
#include <random>

namespace {
std::atomic<size_t> allocations{0};
}  // namespace

// Counts what the process allocates. Not inlined: the compiler would see new paired with free.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  if (void* p = std::malloc(size == 0 ? 1 : size)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t size,
                                     const std::nothrow_t&) noexcept {  // std::stable_sort's buffer
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace tally::sample {
namespace {

using testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> random_row(size_t n, uint32_t seed, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<float> row(n);
  for (float& x : row) x = normal(random);
  return row;
}

std::vector<TokenId> ids(std::initializer_list<int32_t> list) {
  std::vector<TokenId> out;
  for (const int32_t id : list) out.push_back(TokenId{id});
  return out;
}

// A row, what is known of the sequence, and a pick.
struct Bench {
  std::vector<float> logits;
  Params params = {};
  std::vector<TokenId> prompt = {}, generated = {}, end_ids = {}, suppressed = {};
  uint32_t choice = 0;

  Pick pick_with(Scratch& scratch) const {
    std::vector<float> row = logits;
    return sample::pick(row, params, context(), scratch);
  }
  Pick pick() const {
    Scratch scratch(logits.size());
    return pick_with(scratch);
  }
  int32_t greedy() {
    params.temperature = 0;
    const Pick result = pick();
    EXPECT_TRUE(result.finite);
    return raw(result.id);
  }
  Context context() const {
    return {.prompt = prompt,
            .generated = generated,
            .end_ids = end_ids,
            .suppressed_ids = suppressed,
            .choice = choice};
  }
};

// Wherever the generated tokens end and the drafts behind them begin.
TEST(Pick, DraftsCountAsGenerated) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    Bench bench{.logits = random_row(200, seed, 2)};
    bench.params.seed = seed, bench.params.logprobs = 3;
    bench.params.temperature = seed % 4 == 0 ? 0 : 0.8f;
    bench.params.penalties = {.repetition = 1.2f, .presence = 0.5f, .frequency = 0.3f};
    bench.params.min_tokens = seed % 2 == 0 ? 6 : 8;
    bench.prompt = ids({1, 2, 3}), bench.end_ids = ids({7}), bench.params.stop_ids = ids({9});
    const std::vector<TokenId> all = ids({5, 9, 5, 7, 2, 5, 11});
    bench.generated = all;
    const Pick wanted = bench.pick();
    for (size_t cut = 0; cut <= all.size(); ++cut) {
      const std::span<const TokenId> known = all;
      Context context = bench.context();
      context.generated = known.first(cut), context.drafts = known.subspan(cut);
      std::vector<float> row = bench.logits;
      Scratch scratch(row.size());
      const Pick got = pick(row, bench.params, context, scratch);
      EXPECT_EQ(got.id, wanted.id) << seed << ' ' << cut;
      EXPECT_EQ(got.logprob, wanted.logprob) << seed << ' ' << cut;
      EXPECT_EQ(got.is_end, wanted.is_end) << seed << ' ' << cut;
    }
  }
}

// The definition: adjusted logits sorted in full, everything in long double, the draw in order of id.
// `margin` is how near the draw and the cut of top_p came to a border: rounding may decide there.
struct Reference {
  size_t id = 0;
  long double margin = 1;
};
Reference reference_draw(const std::vector<float>& row, const Params& params, double random) {
  std::vector<size_t> order;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] != -kInf) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return row[a] != row[b] ? row[a] > row[b] : a < b; });
  if (params.top_k > 0) order.resize(std::min(order.size(), static_cast<size_t>(params.top_k)));
  std::map<size_t, long double> weights;
  long double total = 0;
  const long double max = row[order[0]];
  for (const size_t i : order) {
    total += weights[i] = std::exp((row[i] - max) / static_cast<long double>(params.temperature));
  }
  Reference result;
  if (params.top_p < 1) {
    long double sum = 0;
    for (size_t n = 0; n < order.size(); ++n) {
      sum += weights[order[n]];
      result.margin =
          std::min(result.margin, std::fabs(sum / total - static_cast<long double>(params.top_p)));
      if (sum >= params.top_p * total) {
        order.resize(n + 1);
        break;
      }
    }
  }
  std::erase_if(order, [&](size_t i) { return weights[i] < params.min_p; });
  for (const auto& [i, w] : weights) {
    if (params.min_p > 0)
      result.margin = std::min(result.margin, std::fabs(w - static_cast<long double>(params.min_p)));
  }
  std::sort(order.begin(), order.end());
  total = 0;
  for (const size_t i : order) total += weights[i];
  long double sum = 0;
  bool found = false;
  for (const size_t i : order) {
    sum += weights[i];
    result.margin = std::min(result.margin, std::fabs(sum / total - static_cast<long double>(random)));
    if (!found && sum > random * total) {
      result.id = i;
      found = true;
    }
  }
  return result;
}

TEST(Pick, EqualsTheDefinitionByFullSort) {
  std::mt19937 random(1);
  size_t compared = 0, undecided = 0;
  for (uint32_t round = 0; round < 1500; ++round) {
    constexpr size_t kSizes[] = {1, 2, 63, 64, 65, 700, 5000, 20000};
    const size_t vocab = kSizes[random() % (round % 10 == 0 ? 8 : 7)];
    constexpr float kSpreads[] = {0.01f, 1, 3, 12};
    Bench bench{.logits = random_row(vocab, round, kSpreads[random() % 4])};
    if (round % 3 == 0) {  // many equal values
      for (float& x : bench.logits) x = std::round(x);
    }
    constexpr float kTopP[] = {1, 1, 0.9f, 0.5f, 0.999f, 1e-5f};
    constexpr float kMinP[] = {0, 0, 0.05f, 1};
    constexpr float kTemperatures[] = {1, 0.7f, 2, 0.1f};
    constexpr int32_t kTopK[] = {0, -1, 1, 5, 40, 300, 6000, 100000};
    bench.params.top_p = kTopP[random() % 6];
    bench.params.min_p = kMinP[random() % 4];
    bench.params.temperature = kTemperatures[random() % 4];
    bench.params.top_k = kTopK[random() % 8];
    bench.params.seed = round;
    const Reference want = reference_draw(bench.logits, bench.params, uniform(round, 0, 0));
    const Pick got = bench.pick();
    ASSERT_TRUE(got.finite);
    constexpr long double kRounding = 2e-6L;  // of f32 weights
    if (want.margin < kRounding) {
      ++undecided;
      continue;
    }
    ++compared;
    ASSERT_EQ(raw(got.id), static_cast<int32_t>(want.id))
        << "round " << round << " vocab " << vocab << " top_k " << bench.params.top_k << " top_p "
        << bench.params.top_p << " min_p " << bench.params.min_p << " temperature "
        << bench.params.temperature;
  }
  EXPECT_GT(compared, 900u) << undecided << " undecided";
}

TEST(Pick, GreedyTakesTheLargestAndTheLowerIdOfEquals) {
  EXPECT_EQ((Bench{.logits = {1, 3, 2}}.greedy()), 1);
  EXPECT_EQ((Bench{.logits = {1, 3, 3, 3}}.greedy()), 1);
  EXPECT_EQ((Bench{.logits = {-5, -2, -9}}.greedy()), 1);
  EXPECT_EQ((Bench{.logits = {-1, -0.0f, 0.0f}}.greedy()), 1) << "-0 equals 0";
  EXPECT_EQ((Bench{.logits = {-1, 0.0f, -0.0f}}.greedy()), 1);
  EXPECT_EQ((Bench{.logits = {7}}.greedy()), 0);
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Bench bench{.logits = random_row(1 + seed * 3, seed, 2)};
    if (seed % 2 == 0) {
      for (float& x : bench.logits) x = std::round(x);
    }
    const auto best = std::max_element(bench.logits.begin(), bench.logits.end()) - bench.logits.begin();
    ASSERT_EQ(bench.greedy(), best);
  }
}

// Chi-squared of the draws against the softmax; the seed is fixed, so the verdict is too.
TEST(Pick, DrawsFollowTheSoftmax) {
  constexpr size_t kVocab = 16, kDraws = 100000;
  constexpr double kChiSquared999At15 = 37.697;  // 15 degrees of freedom, p = 0.001
  Bench bench{.logits = random_row(kVocab, 3, 1.2f)};
  bench.params.temperature = 0.8f;
  bench.params.seed = 11;
  std::vector<double> expected(kVocab);
  double total = 0;
  for (size_t i = 0; i < kVocab; ++i)
    total += expected[i] = std::exp(static_cast<double>(bench.logits[i]) / 0.8);
  std::vector<double> counts(kVocab);
  Scratch scratch(kVocab);
  const std::vector<TokenId> generated(kDraws);
  for (size_t position = 0; position < kDraws; ++position) {
    std::vector<float> row = bench.logits;
    Context context;
    context.generated = std::span(generated).first(position);
    ++counts[static_cast<size_t>(raw(pick(row, bench.params, context, scratch).id))];
  }
  double chi_squared = 0;
  for (size_t i = 0; i < kVocab; ++i) {
    const double want = expected[i] / total * kDraws;
    ASSERT_GT(want, 5);
    chi_squared += (counts[i] - want) * (counts[i] - want) / want;
  }
  EXPECT_LT(chi_squared, kChiSquared999At15);
  EXPECT_GT(chi_squared, 1.0) << "too even to be random";
}

TEST(Pick, DependsOnSeedChoiceAndPositionOnly) {
  Bench bench{.logits = random_row(3000, 5, 1)};
  bench.params.top_p = 0.95f;
  Scratch used(3000);
  for (uint32_t round = 0; round < 50; ++round) {
    bench.params.seed = round;
    bench.choice = round % 4;
    bench.generated.assign(round % 7, TokenId{3});
    const TokenId fresh = bench.pick().id;
    EXPECT_EQ(bench.pick_with(used).id, fresh);
    // Another request's pick in between leaves no trace.
    Bench other{.logits = random_row(3000, round, 4)};
    other.params.logprobs = 5;
    other.params.penalties.repetition = 2;
    other.prompt = ids({1, 2, 3, 2});
    other.pick_with(used);
    EXPECT_EQ(bench.pick_with(used).id, fresh);
  }
  const auto distinct = [&](auto change) {
    std::map<int32_t, size_t> seen;
    for (uint32_t i = 0; i < 20; ++i) {
      change(i);
      ++seen[raw(bench.pick().id)];
    }
    return seen.size();
  };
  EXPECT_GT(distinct([&](uint32_t i) { bench.params.seed = i; }), 10u);
  EXPECT_GT(distinct([&](uint32_t i) { bench.choice = i; }), 10u);
  EXPECT_GT(distinct([&](uint32_t i) { bench.generated.assign(i, TokenId{0}); }), 10u);
}

TEST(Pick, TinyTemperatureIsGreedyAndSurvivesExtremes) {
  for (const float temperature : {1e-45f, 1e-30f, 1e-20f, 0.001f}) {
    Bench bench{.logits = {1, 5, 4.5f}};
    bench.params.temperature = temperature;
    EXPECT_EQ(raw(bench.pick().id), 1) << temperature;
  }
  constexpr float kMax = std::numeric_limits<float>::max();
  Bench extreme{.logits = {-kMax, kMax, 0, 1e-45f}};
  EXPECT_EQ(raw(extreme.pick().id), 1);
}

TEST(Pick, TopKOneAndTinyTopPAreTheBest) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    Bench bench{.logits = random_row(500, seed, 0.1f)};
    const auto best = std::max_element(bench.logits.begin(), bench.logits.end()) - bench.logits.begin();
    bench.params.seed = seed;
    bench.params.top_k = 1;
    EXPECT_EQ(raw(bench.pick().id), best);
    bench.params.top_k = 0;
    bench.params.top_p = 1e-6f;
    EXPECT_EQ(raw(bench.pick().id), best);
    bench.params.top_p = 1;
    bench.params.min_p = 1;
    EXPECT_EQ(raw(bench.pick().id), best);
  }
}

TEST(Pick, NanAndInfinityAreFoundWhereverTheyStand) {
  for (const float bad : {kNan, -kNan, kInf, -kInf}) {
    for (const size_t at : {size_t{0}, size_t{63}, size_t{64}, size_t{999}}) {
      for (const float temperature : {0.0f, 1.0f}) {
        for (const int32_t logprobs : {-1, 2}) {
          Bench bench{.logits = random_row(1000, 1, 1)};
          bench.logits[at] = bad;
          bench.params.temperature = temperature;
          bench.params.logprobs = logprobs;
          EXPECT_FALSE(bench.pick().finite) << bad << " at " << at;
          // Nor does a mask, a bias or a penalty hide it.
          bench.suppressed = bench.prompt = {TokenId{static_cast<int32_t>(at)}};
          bench.params.bias = {{TokenId{static_cast<int32_t>(at)}, -100}};
          bench.params.penalties.repetition = 1.5f;
          EXPECT_FALSE(bench.pick().finite) << bad << " at " << at;
        }
      }
    }
  }
}

TEST(Pick, BiasIsAddedAndIsNoMask) {
  Bench bench{.logits = {1, 2, 3}};
  bench.params.bias = {{TokenId{0}, 2.5f}};
  EXPECT_EQ(bench.greedy(), 0);
  bench.params.bias = {{TokenId{2}, -1.5f}};
  EXPECT_EQ(bench.greedy(), 1);
  bench.params.bias = {{TokenId{0}, -100}, {TokenId{1}, -100}, {TokenId{2}, -100}};
  EXPECT_EQ(bench.greedy(), 2) << "the same for all changes nothing";
  bench.params.temperature = 1;
  EXPECT_TRUE(bench.pick().finite);
}

TEST(Pick, BiasOfAMaskedTokenDoesNotBringItBack) {
  Bench bench{.logits = {1, 2, 3}, .suppressed = ids({2})};
  bench.params.bias = {{TokenId{2}, 100}};
  EXPECT_EQ(bench.greedy(), 1);
}

TEST(Pick, MasksEndIdsUntilMinTokens) {
  Bench bench{.logits = {1, 9, 8, 7}, .end_ids = ids({1})};
  bench.params.stop_ids = ids({2});
  EXPECT_EQ(bench.greedy(), 1);
  EXPECT_TRUE(bench.pick().is_end);
  bench.params.min_tokens = 2;
  EXPECT_EQ(bench.greedy(), 3);
  EXPECT_FALSE(bench.pick().is_end);
  bench.generated = ids({3});
  EXPECT_EQ(bench.greedy(), 3);
  bench.generated = ids({3, 3});
  EXPECT_EQ(bench.greedy(), 1);
}

TEST(Pick, IgnoreEosMasksTheModelsEndIdsButNotTheRequests) {
  Bench bench{.logits = {1, 9, 8, 7}, .end_ids = ids({1})};
  bench.params.stop_ids = ids({2});
  bench.params.ignore_eos = true;
  EXPECT_EQ(bench.greedy(), 2);
  EXPECT_TRUE(bench.pick().is_end);
}

TEST(Pick, EverythingMaskedIsNotFinite) {
  Bench bench{.logits = {1, 2}, .end_ids = ids({0, 1})};
  bench.params.ignore_eos = true;
  EXPECT_FALSE(bench.pick().finite);
  bench.params.temperature = 0;
  EXPECT_FALSE(bench.pick().finite);
  bench.suppressed = ids({0, 1});  // masked twice is masked once
  EXPECT_FALSE(bench.pick().finite);
}

TEST(Pick, MaskedTwiceCountsOnce) {
  Bench bench{.logits = {1, 9, 3}, .end_ids = ids({1}), .suppressed = ids({1})};
  bench.params.ignore_eos = true;
  bench.params.min_tokens = 5;
  bench.params.stop_ids = ids({1, 1});
  EXPECT_EQ(bench.greedy(), 2);
}

TEST(Pick, RepetitionPenaltyDividesPositiveAndMultipliesNegative) {
  Bench bench{.logits = {4, 3, -1, -1.5f}, .prompt = ids({0, 0, 0})};
  bench.params.penalties.repetition = 2;
  EXPECT_EQ(bench.greedy(), 1) << "4 / 2 < 3, once however often it stood";
  bench.generated = ids({1, 2});
  EXPECT_EQ(bench.greedy(), 0) << "4 / 2 > 3 / 2";
  Bench negative{.logits = {-1, -1.5f}, .generated = ids({0})};
  negative.params.penalties.repetition = 2;
  EXPECT_EQ(negative.greedy(), 1) << "-1 * 2 < -1.5";
  negative.params.penalties.repetition = 0.5f;
  EXPECT_EQ(negative.greedy(), 0);
}

TEST(Pick, TheSmallestPenaltyKeepsTheRowFinite) {
  Bench bench{.logits = {4, 0, -3}, .prompt = ids({0, 1, 2})};
  bench.params.penalties.repetition = 1e-45f;
  EXPECT_EQ(bench.greedy(), 0);
}

TEST(Pick, PresenceAndFrequencyCountGeneratedTokensOnly) {
  Bench bench{.logits = {3, 2.5f, 1}, .prompt = ids({0, 0, 0})};
  bench.params.penalties.presence = 2;
  EXPECT_EQ(bench.greedy(), 0) << "the prompt does not count";
  bench.generated = ids({0});
  EXPECT_EQ(bench.greedy(), 1);
  bench.params.penalties = {.presence = 0, .frequency = 0.2f};
  EXPECT_EQ(bench.greedy(), 0) << "3 - 0.2";
  bench.generated = ids({0, 0, 0});
  EXPECT_EQ(bench.greedy(), 1) << "3 - 0.6";
  bench.params.penalties.repetition = 2;
  bench.generated = ids({0, 0, 0, 1});
  EXPECT_EQ(bench.greedy(), 1) << "3/2 - .6 < 2.5/2 - .2";
}

TEST(Pick, LogprobsAreOfTheRawRow) {
  Bench bench{.logits = random_row(1000, 9, 4), .prompt = ids({1, 2}), .suppressed = ids({500})};
  long double sum = 0;
  for (const float x : bench.logits) sum += std::exp(static_cast<long double>(x));
  const auto logprob = [&](TokenId id) {
    return static_cast<double>(static_cast<long double>(bench.logits[static_cast<size_t>(raw(id))]) -
                               std::log(sum));
  };
  std::vector<int32_t> order(1000);
  for (int32_t i = 0; i < 1000; ++i) order[static_cast<size_t>(i)] = i;
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return bench.logits[static_cast<size_t>(a)] > bench.logits[static_cast<size_t>(b)];
  });
  bench.params.logprobs = 7;
  bench.params.temperature = 0.5f;
  bench.params.top_k = 3;
  bench.params.bias = {{TokenId{77}, 100}};
  bench.params.penalties.repetition = 3;
  const Pick result = bench.pick();
  EXPECT_EQ(raw(result.id), 77);
  EXPECT_NEAR(static_cast<double>(result.logprob), logprob(TokenId{77}), 2e-6);
  ASSERT_EQ(result.top_count, 7);
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(raw(result.top[i].id), order[i]);
    EXPECT_NEAR(static_cast<double>(result.top[i].logprob), logprob(result.top[i].id), 2e-6);
  }
}

TEST(Pick, LogprobsZeroGivesTheChosenOneOnly) {
  Bench bench{.logits = {0, 0}};
  bench.params.logprobs = 0;
  const Pick result = bench.pick();
  EXPECT_EQ(result.top_count, 0);
  EXPECT_NEAR(static_cast<double>(result.logprob), -std::log(2.0), 1e-7);
  bench.params.logprobs = -1;
  EXPECT_EQ(bench.pick().logprob, 0.0f);
}

TEST(Pick, MoreLogprobsThanTokensGivesAllTokens) {
  Bench bench{.logits = {1, 3, 3}};
  bench.params.logprobs = kLogprobsMax;
  const Pick result = bench.pick();
  ASSERT_EQ(result.top_count, 3);
  EXPECT_EQ(raw(result.top[0].id), 1);
  EXPECT_EQ(raw(result.top[1].id), 2);
  EXPECT_EQ(raw(result.top[2].id), 0);
}

TEST(Pick, AllocatesNothing) {
  constexpr size_t kVocab = 30000;
  Bench bench{.logits = random_row(kVocab, 2, 2),
              .prompt = ids({1, 2, 3}),
              .generated = ids({4, 5}),
              .end_ids = ids({0})};
  bench.params.bias = {{TokenId{9}, 1}};
  bench.params.stop_ids = ids({8});
  Scratch scratch(kVocab);
  std::vector<float> row(kVocab);
  for (const float temperature : {0.0f, 1.0f}) {
    for (const float top_p : {1.0f, 0.9f, 0.99999f}) {
      for (const int32_t top_k : {0, 40, 20000}) {
        for (const int32_t logprobs : {-1, 20}) {
          bench.params.temperature = temperature;
          bench.params.top_p = top_p;
          bench.params.top_k = top_k;
          bench.params.logprobs = logprobs;
          bench.params.penalties.repetition = 1.1f;
          row = bench.logits;
          const size_t before = allocations;
          const Pick result = pick(row, bench.params, bench.context(), scratch);
          const size_t after = allocations;
          EXPECT_TRUE(result.finite);
          EXPECT_EQ(after, before);
        }
      }
    }
  }
}

TEST(Scratch, SaysItsBytes) {
  EXPECT_GE(Scratch::bytes(1000), 1000 * (2 * sizeof(float) + sizeof(uint32_t) + sizeof(uint64_t)));
  EXPECT_LT(Scratch::bytes(262144), size_t{6} << 20);
}

// The flat row has every token in the nucleus: the slow ways round are taken too.
TEST(Pick, AFlatVocabularyOfFullSizeIsDrawnEvenly) {
  constexpr size_t kVocab = 262144;
  Bench bench{.logits = std::vector<float>(kVocab, 0.25f)};
  bench.params.top_p = 0.5f;
  Scratch scratch(kVocab);
  double sum = 0;
  constexpr int kDraws = 40;
  for (int i = 0; i < kDraws; ++i) {
    bench.params.seed = static_cast<uint64_t>(i);
    const Pick result = bench.pick_with(scratch);
    ASSERT_LT(raw(result.id), static_cast<int32_t>(kVocab / 2)) << "of equals the lower ids are kept";
    sum += raw(result.id);
  }
  EXPECT_NEAR(sum / kDraws, kVocab / 4.0, kVocab / 16.0);
}

// What `pick` says of the token it takes, and a rank by counting.
TEST(Score, IsWhatPickTells) {
  for (const size_t n : {1ul, 5ul, 64ul, 65ul, 1000ul, 49'152ul}) {
    std::vector<float> row = random_row(n, static_cast<uint32_t>(n), 4);
    for (size_t i = 0; i + 3 < n; i += 7) row[i + 3] = row[i];  // equal ones
    Scratch scratch(n);
    Params params;
    params.temperature = 0, params.logprobs = kLogprobsMax;
    std::vector<float> spent = row;
    const Pick pick_of = pick(spent, params, {}, scratch);
    const std::vector<float> before = row;
    for (size_t i = 0; i < n; i += 1 + n / 50) {
      const TokenId id{static_cast<int32_t>(i)};
      const Score got = score(row, id, 3, scratch);
      size_t rank = 1;
      for (size_t k = 0; k < n; ++k) rank += row[k] > row[i] || (row[k] == row[i] && k < i) ? 1 : 0;
      EXPECT_TRUE(got.finite);
      EXPECT_EQ(got.rank, rank) << i << " of " << n;
      ASSERT_EQ(got.top_count, std::min<size_t>(n, 3));
      for (size_t t = 0; t < got.top_count; ++t) {
        EXPECT_EQ(got.top[t].id, pick_of.top[t].id);
        EXPECT_EQ(got.top[t].logprob, pick_of.top[t].logprob);
        if (got.top[t].id == id) {
          EXPECT_EQ(got.rank, t + 1);
          EXPECT_EQ(got.logprob, got.top[t].logprob);
        }
      }
    }
    EXPECT_EQ(score(row, pick_of.id, 0, scratch).logprob, pick_of.logprob);
    EXPECT_EQ(row, before) << "the row is left as it was";
  }
}

TEST(Score, NotFinite) {
  Scratch scratch(100);
  for (const float bad : {kNan, kInf, -kInf}) {
    std::vector<float> row = random_row(100, 1, 1);
    row[70] = bad;
    EXPECT_FALSE(score(row, TokenId{3}, 2, scratch).finite);
  }
}

}  // namespace
}  // namespace tally::sample
