#include "engine/step_work.h"

#include <algorithm>

namespace tally::engine {
namespace {

// Pairs of `rows` queries from `position` on with the keys that they see.
uint64_t pairs_of(uint64_t position, uint64_t rows, uint64_t window) {
  const uint64_t growing = window == 0 ? rows : std::min(rows, window > position ? window - position : 0);
  return growing * position + growing * (growing + 1) / 2 + (rows - growing) * window;
}

}  // namespace

StepWork::StepWork(const model::Model& model, const std::vector<tensor::KvLayout>& layouts,
                   uint64_t scratch_bytes, uint32_t rows_max)
    : weight_bytes_(model.weight_bytes()),
      row_flops_(model.row_flops()),
      logits_flops_(model.logits_flops()),
      row_scratch_bytes_(scratch_bytes / rows_max) {
  const model::ModelSpec& spec = model.spec();
  for (size_t i = 0; i < layouts.size(); ++i) {
    const model::LayerSpec& layer = spec.layer[i];
    auto span =
        std::find_if(spans_.begin(), spans_.end(), [&](const Span& s) { return s.window == layer.window; });
    if (span == spans_.end()) span = spans_.insert(span, Span{.window = layer.window});
    span->position_bytes += layouts[i].block_bytes / layouts[i].block_tokens;
    span->pair_flops += uint64_t{2} * layer.heads * (spec.attention.key_dim + spec.attention.value_dim);
  }
}

void StepWork::add_rows(uint32_t position, uint32_t rows, StepRecord& record) const {
  for (const Span& span : spans_) {
    const uint32_t first = span.window == 0 || position < span.window ? 0 : position + 1 - span.window;
    record.kv_bytes += uint64_t{position + rows - first} * span.position_bytes;
    record.kv_bytes_written += uint64_t{rows} * span.position_bytes;
    record.flops += pairs_of(position, rows, span.window) * span.pair_flops;
  }
  record.context_tokens += position + rows;
}

void StepWork::add_pass(StepRecord& record) const {
  const uint64_t rows = record.prefill_rows + record.decode_rows + record.recompute_rows + record.draft_rows;
  record.weight_bytes += weight_bytes_;
  record.activation_bytes += rows * row_scratch_bytes_;
  record.flops += rows * row_flops_ + record.logits_rows * logits_flops_;
}

}  // namespace tally::engine
