#pragma once
// What steps cost here (sched::StepCost): measured at start with the model's own passes, and kept current by
// what steps take. Only --step-latency needs it. (Private to the room.)

#include "base/pool.h"
#include "kv/view.h"
#include "model/model.h"
#include "sched/plan.h"

#include <span>
#include <vector>

namespace tally::engine {

// Runs passes of one and of many rows, short and deep, over the blocks of an empty pool. Microseconds.
// Requires: scratch of at least `rows_max` rows; `context_max` positions fit into the model and the pool.
sched::StepCost measure_cost(const model::Model& model, const kv::View& view, model::Scratch& scratch,
                             base::ThreadPool& pool, uint32_t rows_max, uint32_t context_max);

// Microseconds of passes of so many rows of one sequence, each with logits, ascending; the first of `rows` at
// least, as many as half a second allows. Requires: as above, and room for the logits of all.
std::vector<double> measure_rows(const model::Model& model, const kv::View& view, model::Scratch& scratch,
                                 base::ThreadPool& pool, std::span<const uint32_t> rows);

// Follows how much longer steps take than their measured cost says: other work on the machine, warmth,
// prompts in the batch. The slower steps set the pace.
class CostFollower {
 public:
  explicit CostFollower(const sched::StepCost& measured) : measured_(measured) {}
  // Of a step with prompt rows beside decode rows, in microseconds.
  void observe(double predicted_us, double taken_us);
  sched::StepCost now() const;

 private:
  sched::StepCost measured_;
  double factor_ = 1;
};

}  // namespace tally::engine
