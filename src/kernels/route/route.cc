// Scores of all experts, the choice by repeated maximum, the weights. used x experts comparisons: a few
// thousand, small against the experts' own work.

#include "kernels/route/route.h"

#include "base/check.h"
#include "kernels/vector/polynomials.h"

#include <algorithm>
#include <limits>

namespace tally::kernels {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// x = softmax(x), with 16 strided partial sums. NaN and +inf make everything NaN.
void softmax(size_t n, float* x) {
  float max = kLowest, part[16] = {};
  for (size_t i = 0; i < n; ++i) max = x[i] > max ? x[i] : max;
  for (size_t i = 0; i < n; ++i) {
    x[i] = exp_f32(x[i] - max);
    part[i % 16] = part[i % 16] + x[i];
  }
  for (size_t step = 8; step > 0; step /= 2)
    for (size_t i = 0; i < step; ++i) part[i] = part[i] + part[i + step];
  for (size_t i = 0; i < n; ++i) x[i] = x[i] / part[0];
}

// The first of the highest values among those that are not taken; n if all are.
size_t best_of(const float* value, const bool* taken, size_t n) {
  size_t best = n;
  for (size_t i = 0; i < n; ++i)
    if (!taken[i] && (best == n || value[i] > value[best])) best = i;
  return best;
}

void check(const RouteArgs& a) {
  TALLY_CHECK(a.experts <= kExpertsMax, "too many experts", a.experts);
  TALLY_CHECK(a.used >= 1 && a.used <= a.experts, "experts used", a.used, a.experts);
  if (a.groups == 0) return;
  TALLY_CHECK(a.experts % a.groups == 0, "groups of experts are not equal", a.experts, a.groups);
  TALLY_CHECK(a.groups_used >= 1 && a.groups_used <= a.groups, "groups used", a.groups_used, a.groups);
  TALLY_CHECK(a.used <= a.groups_used * (a.experts / a.groups), "experts used of the groups", a.used);
}

// Takes the experts of all groups but the best ones out of the choice. rank [experts]: no NaN.
void exclude_groups(const RouteArgs& a, const float* rank, bool* taken) {
  const size_t size = a.experts / a.groups;
  float worth[kExpertsMax];
  bool chosen[kExpertsMax] = {};
  for (size_t g = 0; g < a.groups; ++g) {
    float first = kLowest, second = kLowest;
    for (size_t i = g * size; i < (g + 1) * size; ++i) {
      second = std::max(second, std::min(first, rank[i]));
      first = std::max(first, rank[i]);
    }
    worth[g] = size == 1 ? first : first + second;
    if (worth[g] != worth[g]) worth[g] = kLowest;  // inf - inf
  }
  for (size_t i = 0; i < a.groups_used; ++i) chosen[best_of(worth, chosen, a.groups)] = true;
  for (size_t e = 0; e < a.experts; ++e) taken[e] = !chosen[e / size];
}

void choose(const RouteArgs& a, const float* score) {
  float rank[kExpertsMax];
  bool taken[kExpertsMax] = {};
  for (size_t e = 0; e < a.experts; ++e) {
    rank[e] = a.selection_bias == nullptr ? score[e] : score[e] + a.selection_bias[e];
    if (rank[e] != rank[e]) rank[e] = kLowest;
  }
  if (a.groups > 0) exclude_groups(a, rank, taken);
  for (size_t i = 0; i < a.used; ++i) {
    const size_t best = best_of(rank, taken, a.experts);
    taken[best] = true;
    a.ids[i] = static_cast<uint32_t>(best);
    a.weights[i] = score[best];
  }
}

}  // namespace

void route(const RouteArgs& args) {
  check(args);
  float score[kExpertsMax];
  for (size_t e = 0; e < args.experts; ++e)
    score[e] = args.gating == Gating::kSigmoid ? sigmoid_f32(args.logits[e]) : args.logits[e];
  if (args.gating == Gating::kSoftmax) softmax(args.experts, score);
  choose(args, score);
  if (args.gating == Gating::kSoftmaxOfChosen) softmax(args.used, args.weights);
  if (args.normalize) {
    float sum = 0;
    for (size_t i = 0; i < args.used; ++i) sum = sum + args.weights[i];
    const float divisor = sum < args.normalize_min ? args.normalize_min : sum;
    for (size_t i = 0; i < args.used; ++i) args.weights[i] = args.weights[i] / divisor;
  }
  for (size_t i = 0; i < args.used; ++i) args.weights[i] = args.weights[i] * args.scale;
}

}  // namespace tally::kernels
