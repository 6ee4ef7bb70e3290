#pragma once
// Attention over a second cache beside the one of a step, layer by layer, to see what its codec costs
// (private to the room). The pass goes on with what the first cache gave.

#include "base/pool.h"
#include "kv/view.h"
#include "model/program.h"

#include <cstddef>
#include <vector>

namespace tally::model {

struct KvProbe {
  const kv::View* view = nullptr;  // the second cache; the step's tables hold for it too
  float* out = nullptr;            // [rows][widest attention of a layer]
  std::byte* worker = nullptr;     // [threads][worker_bytes], 64-byte aligned
  size_t worker_bytes = 0;         // attend_scratch_bytes of the widest layer
  std::vector<uint8_t> refused;    // [rows]: K or V of the layer at hand does not fit the codec
  std::vector<double> damage;      // [layers], see Model::kv_damage
};

// Beside a layer's store of one row. Threads: any, each with rows of its own.
void probe_store(const StepContext& step, uint32_t layer, uint32_t row, const float* k, const float* v);
// Behind an attend stage, before anything overwrites its source.
void probe_attention(const Program& program, const StepContext& step, const Instruction& in,
                     base::ThreadPool& pool);

// What kv_damage takes until it returns: two caches of `tokens` positions, and what a KvProbe points to.
struct ProbeLayout {
  size_t reference = 0, candidate = 0, out = 0, worker = 0, worker_bytes = 0, bytes = 0;
};
ProbeLayout lay_out_probe(const Program& program, const kv::PoolShape& reference,
                          const kv::PoolShape& candidate, size_t tokens, size_t threads);

}  // namespace tally::model
