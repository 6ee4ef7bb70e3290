#include "engine/cost.h"

#include "base/clock.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace tally::engine {
namespace {

constexpr int kTries = 3;  // the least counts, for what disturbs only adds

// Passes of `rows` rows of one sequence from `position` on.
struct Prober {
  const model::Model& model;
  const kv::View& view;
  model::Scratch& scratch;
  base::ThreadPool& pool;

  double least_us(uint32_t rows, uint32_t position, uint32_t logits, int tries = kTries) const {
    const uint32_t block_tokens = view.layout(LayerIdx{0}).block_tokens;
    const std::vector<TokenId> tokens(rows, TokenId{0});
    const model::Segment segment{0, rows, position, 0};
    std::vector<uint32_t> table((position + rows + block_tokens - 1) / block_tokens);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<uint32_t>(i);
    std::vector<uint32_t> wanted(logits);  // of the last rows
    std::iota(wanted.begin(), wanted.end(), rows - logits);
    double least = 0;
    for (int i = 0; i < tries; ++i) {
      const int64_t begin = base::now_us();
      model.forward({tokens, {&segment, 1}, table, wanted}, view, scratch, pool);
      const auto took = static_cast<double>(base::now_us() - begin);
      if (i == 0 || took < least) least = took;
    }
    return least;
  }
};

double above(double a, double b) { return std::max(0.0, a - b); }

}  // namespace

sched::StepCost measure_cost(const model::Model& model, const kv::View& view, model::Scratch& scratch,
                             base::ThreadPool& pool, uint32_t rows_max, uint32_t context_max) {
  constexpr uint32_t kManyRows = 32, kDeep = 1024;
  const Prober probe{model, view, scratch, pool};
  const uint32_t rows = std::min({rows_max, kManyRows, context_max});
  const uint32_t deep = std::min(kDeep, context_max - rows) / rows * rows;
  // Rows that are read were written: nothing but values of this model are in the blocks.
  for (uint32_t at = 0; at < deep; at += rows) probe.least_us(rows, at, 0, 1);
  sched::StepCost cost;
  const double one = probe.least_us(1, 0, 0), many = probe.least_us(rows, 0, 0);
  cost.weights = one;
  cost.row = rows > 1 ? std::max(many / rows, one / 64) : one;
  cost.logits = above(probe.least_us(1, 0, 1), one);
  if (deep > 0) {
    cost.kv_decode = above(probe.least_us(1, deep, 0), one) / deep;
    cost.kv_prefill = above(probe.least_us(rows, deep, 0), many) / (double{1} * rows * deep);
  }
  return cost;
}

std::vector<double> measure_rows(const model::Model& model, const kv::View& view, model::Scratch& scratch,
                                 base::ThreadPool& pool, std::span<const uint32_t> rows) {
  // Round by round: what disturbs for a while disturbs all of them, and the least of each counts.
  constexpr int64_t kBudgetUs = 500'000;
  constexpr int kRounds = 8;
  const Prober probe{model, view, scratch, pool};
  const int64_t begin = base::now_us();
  probe.least_us(rows.front(), 0, rows.front(), 1);  // what is cold
  std::vector<double> out;
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!out.empty() && base::now_us() - begin > kBudgetUs) return out;
      const double us = std::max(1.0, probe.least_us(rows[i], 0, rows[i], 1));
      if (round == 0) out.push_back(us);
      out[i] = std::min(out[i], us);
    }
  }
  return out;
}

void CostFollower::observe(double predicted_us, double taken_us) {
  if (predicted_us <= 0) return;
  // Up at once and down slowly: the bound is for nearly all steps, so the slower ones set the pace.
  constexpr double kUp = 1.0 / 4, kDown = 1.0 / 64;
  const double ratio = std::clamp(taken_us / predicted_us, 0.5, 2.0);
  factor_ = std::clamp(factor_ + factor_ * (ratio - 1) * (ratio > 1 ? kUp : kDown), 0.5, 4.0);
}

sched::StepCost CostFollower::now() const {
  sched::StepCost c = measured_;
  for (double* part : {&c.fixed, &c.weights, &c.row, &c.kv_decode, &c.kv_prefill, &c.logits})
    *part *= factor_;
  return c;
}

}  // namespace tally::engine
