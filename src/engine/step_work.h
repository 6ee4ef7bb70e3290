#pragma once
// What a step reads and computes, known from its rows (private to the room).

#include "engine/step_log.h"
#include "model/model.h"

#include <cstdint>
#include <vector>

namespace tally::engine {

class StepWork {
 public:
  StepWork(const model::Model& model, const std::vector<tensor::KvLayout>& layouts, uint64_t scratch_bytes,
           uint32_t rows_max);

  // Adds the attention of one sequence's rows, which begin at `position`, and what they write.
  void add_rows(uint32_t position, uint32_t rows, StepRecord& record) const;
  // Adds what all rows of the step share. Requires: its rows are counted.
  void add_pass(StepRecord& record) const;

 private:
  // Layers that see as far.
  struct Span {
    uint32_t window = 0;
    uint64_t position_bytes = 0, pair_flops = 0;  // of a position read; of a query and a key that meet
  };
  std::vector<Span> spans_;
  uint64_t weight_bytes_, row_flops_, logits_flops_, row_scratch_bytes_;
};

}  // namespace tally::engine
