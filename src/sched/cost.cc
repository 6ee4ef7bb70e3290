// What a step costs, and how many prompt rows fit into the time that decoding sequences are promised.

#include "sched/core.h"

#include <algorithm>

namespace tally::sched {

namespace {

struct Load {
  double rows = 0, logits = 0;
  double decode_positions = 0, prefill_positions = 0;  // attended to, summed over rows
};

double cost_of(const StepCost& c, const Load& load) {
  return c.fixed + std::max(c.weights, load.rows * c.row) + load.decode_positions * c.kv_decode +
         load.prefill_positions * c.kv_prefill + load.logits * c.logits;
}

// n rows from position p on attend to p + 1, ..., p + n positions.
double positions_of(double position, double rows) { return rows * position + rows * (rows + 1) / 2; }

Load load_of(const StepPlan& plan) {
  Load load;
  for (const PlannedRows& group : plan.rows) {
    const double rows = group.rows, positions = positions_of(group.position, rows);
    load.rows += rows;
    (group.decode ? load.decode_positions : load.prefill_positions) += positions;
    load.logits += group.logits;
  }
  return load;
}

}  // namespace

uint32_t prefill_rows_max(Core& core, uint32_t decode_rows) {
  const uint32_t left = core.config.step_tokens - decode_rows;
  const bool skipped = core.prefill_skipped;
  core.prefill_skipped = false;
  if (core.config.step_latency == 0 || decode_rows == 0) return left;

  // Whose turn it is follows later: all are taken to stand as deep as the deepest.
  double position = 0;
  for (const Sequence* seq : core.order) position = std::max(position, static_cast<double>(seq->computed));
  const bool scores = std::ranges::any_of(core.order, &Sequence::has_scores_left);
  const Load decodes = load_of(core.plan);
  const auto in_time = [&](uint32_t rows) {
    Load load = decodes;
    load.rows += rows;
    load.prefill_positions += positions_of(position, rows);
    load.logits += scores ? std::min(rows, core.logits_free + 1) : 1;
    return cost_of(core.cost, load) <= static_cast<double>(core.config.step_latency);
  };
  uint32_t low = 0, high = left;
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (in_time(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  if (low < left) core.count(Branch::kPrefillBudget);
  const uint32_t least = std::min(left, kLatencyRowsMin);
  if (low >= least) return low;
  // Rows that ride on the weight stream are free: always; else a small chunk every second step.
  const double free_rows = core.cost.row > 0 ? core.cost.weights / core.cost.row - decode_rows : 0;
  if (free_rows >= 1)
    return std::max(low, std::min(least, static_cast<uint32_t>(std::min(free_rows, 512.0))));
  if (skipped) return least;
  core.prefill_skipped = low == 0;
  if (low == 0) core.count(Branch::kPrefillSkipped);
  return low;
}

double step_cost(const StepCost& cost, const StepPlan& plan) { return cost_of(cost, load_of(plan)); }

}  // namespace tally::sched
