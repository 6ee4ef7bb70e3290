// The router against a reference in double that sorts, its special cases, and logits that are not numbers.

#include "kernels/route/route.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

namespace tally::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Routed {
  std::vector<uint32_t> ids;
  std::vector<float> weights;
};

Routed routed(RouteArgs args, const std::vector<float>& logits) {
  Routed r{.ids = std::vector<uint32_t>(args.used + 1, 777),
           .weights = std::vector<float>(args.used + 1, 777)};
  args.logits = logits.data(), args.experts = logits.size();
  args.ids = r.ids.data(), args.weights = r.weights.data();
  route(args);
  EXPECT_EQ(r.ids.back(), 777u) << "wrote past the end";
  EXPECT_EQ(r.weights.back(), 777.f);
  r.ids.pop_back(), r.weights.pop_back();
  return r;
}

std::vector<double> softmax(const std::vector<double>& x) {
  const double max = *std::max_element(x.begin(), x.end());
  std::vector<double> p;
  for (const double v : x) p.push_back(std::exp(v - max));
  const double sum = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& v : p) v /= sum;
  return p;
}

// Indices by falling value, equal ones in rising order.
std::vector<size_t> ranking(const std::vector<double>& value) {
  std::vector<size_t> order(value.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return value[a] > value[b]; });
  return order;
}

void expect_reference(const RouteArgs& args, const std::vector<float>& logits) {
  std::vector<double> score(logits.begin(), logits.end());
  if (args.gating == Gating::kSoftmax) score = softmax(score);
  if (args.gating == Gating::kSigmoid)
    for (double& s : score) s = 1 / (1 + std::exp(-s));
  std::vector<double> rank = score;
  if (args.selection_bias != nullptr)
    for (size_t e = 0; e < rank.size(); ++e) rank[e] += static_cast<double>(args.selection_bias[e]);
  if (args.groups > 0) {
    const size_t size = rank.size() / args.groups;
    std::vector<double> worth;
    for (size_t g = 0; g < args.groups; ++g) {
      std::vector<double> members(rank.begin() + static_cast<ptrdiff_t>(g * size),
                                  rank.begin() + static_cast<ptrdiff_t>((g + 1) * size));
      std::sort(members.rbegin(), members.rend());
      worth.push_back(size == 1 ? members[0] : members[0] + members[1]);
    }
    const std::vector<size_t> order = ranking(worth);
    for (size_t i = args.groups_used; i < args.groups; ++i)
      std::fill_n(rank.begin() + static_cast<ptrdiff_t>(order[i] * size), size, -1e300);
  }
  std::vector<size_t> ids = ranking(rank);
  ids.resize(args.used);
  std::vector<double> weights;
  for (const size_t e : ids) weights.push_back(score[e]);
  if (args.gating == Gating::kSoftmaxOfChosen) weights = softmax(weights);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& w : weights) {
    if (args.normalize) w /= std::max(sum, static_cast<double>(args.normalize_min));
    w *= static_cast<double>(args.scale);
  }
  const Routed r = routed(args, logits);
  for (size_t i = 0; i < args.used; ++i) {
    ASSERT_EQ(r.ids[i], ids[i]) << "rank " << i << " of " << args.used;
    ASSERT_NEAR(r.weights[i], weights[i], 2e-6 * std::abs(weights[i])) << "rank " << i;
  }
}

TEST(Route, EqualsTheReference) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal(0, 2);
  struct Size {
    size_t experts, used, groups, groups_used;
  };
  const Size sizes[] = {{1, 1, 0, 0},           {4, 1, 0, 0},   {8, 2, 0, 0},  {60, 4, 0, 0},
                        {128, 8, 0, 0},         {8, 8, 0, 0},   {16, 4, 4, 2}, {256, 8, 8, 4},
                        {kExpertsMax, 9, 0, 0}, {12, 3, 12, 5}, {24, 4, 1, 1}, {64, 6, 32, 3}};
  for (const Size& size : sizes)
    for (const Gating gating : {Gating::kSoftmax, Gating::kSigmoid, Gating::kSoftmaxOfChosen})
      for (int variant = 0; variant < 4; ++variant) {
        SCOPED_TRACE(testing::Message() << size.used << " of " << size.experts << " gating "
                                        << static_cast<int>(gating) << " variant " << variant);
        std::vector<float> logits(size.experts), bias(size.experts);
        for (float& x : logits) x = normal(rng);
        for (float& x : bias) x = 0.1f * normal(rng);
        RouteArgs args{.used = size.used, .gating = gating, .groups = size.groups};
        args.groups_used = size.groups_used;
        args.normalize = variant % 2 == 1, args.scale = variant == 3 ? 2.5f : 1.f;
        if (variant >= 2) args.selection_bias = bias.data();
        expect_reference(args, logits);
      }
}

TEST(Route, EqualScoresGoToTheLowerIndex) {
  const Routed r = routed({.used = 3, .normalize = true}, {1, 5, 1, 5, 1, 1});
  EXPECT_EQ(r.ids, (std::vector<uint32_t>{1, 3, 0}));
  EXPECT_EQ(r.weights[0], r.weights[1]);
  // Equal groups too: the first two of four.
  const Routed g = routed({.used = 2, .gating = Gating::kSigmoid, .groups = 4, .groups_used = 2},
                          {0, 1, 1, 0, 0, 1, 1, 0});
  EXPECT_EQ(g.ids, (std::vector<uint32_t>{1, 2}));
}

// A group is worth its two best: one high expert does not carry it.
TEST(Route, AGroupIsWorthItsTwoBest) {
  const Routed r = routed({.used = 1, .gating = Gating::kSigmoid, .groups = 2, .groups_used = 1},
                          {3, -9, -9, -9, 1, 1, -9, -9});
  EXPECT_EQ(r.ids, (std::vector<uint32_t>{4}));
}

TEST(Route, TheBiasChoosesButDoesNotWeigh) {
  const std::vector<float> bias = {0, 0, 10, 0};
  const Routed r =
      routed({.used = 2, .gating = Gating::kSigmoid, .selection_bias = bias.data()}, {1, 0, -2, 0});
  EXPECT_EQ(r.ids, (std::vector<uint32_t>{2, 0}));
  EXPECT_NEAR(r.weights[0], 1 / (1 + std::exp(2.0)), 1e-7);
  EXPECT_NEAR(r.weights[1], 1 / (1 + std::exp(-1.0)), 1e-7);
}

TEST(Route, ASumNearZeroIsNotDividedBy) {
  const Routed r = routed({.used = 1, .gating = Gating::kSigmoid, .normalize = true}, {-20, -30});
  EXPECT_NEAR(r.weights[0], std::exp(-20.0) * 16384, 1e-10);
}

// Whatever the logits are, the ids are distinct experts, and a NaN chosen, or in a softmax, is passed on.
TEST(Route, LogitsThatAreNotNumbers) {
  std::mt19937 rng(3);
  const float special[] = {kNan, kInf, -kInf, 0.f, 3e38f, -3e38f, 1e-40f};
  for (int round = 0; round < 400; ++round) {
    std::vector<float> logits(16), bias(16);
    for (float& x : logits) x = special[rng() % std::size(special)];
    for (float& x : bias) x = special[rng() % std::size(special)];
    RouteArgs args{.used = 1 + rng() % 8, .gating = static_cast<Gating>(rng() % 3)};
    if (rng() % 2 == 0) args.selection_bias = bias.data();
    if (rng() % 2 == 0) args.groups = 4, args.groups_used = 2;
    args.normalize = rng() % 2 == 0;
    const Routed r = routed(args, logits);
    const std::set<uint32_t> distinct(r.ids.begin(), r.ids.end());
    ASSERT_EQ(distinct.size(), args.used);
    ASSERT_LT(*distinct.rbegin(), 16u);
    const bool nan_weighs =
        args.gating == Gating::kSoftmax
            ? std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); })
            : std::any_of(r.ids.begin(), r.ids.end(), [&](uint32_t e) { return std::isnan(logits[e]); });
    const bool passed_on =
        std::any_of(r.weights.begin(), r.weights.end(), [](float x) { return std::isnan(x); });
    ASSERT_TRUE(passed_on || !nan_weighs) << "round " << round;
  }
  const Routed all = routed({.used = 3}, std::vector<float>(8, kNan));
  EXPECT_EQ(all.ids, (std::vector<uint32_t>{0, 1, 2}));
}

}  // namespace
}  // namespace tally::kernels
