#pragma once
// The one table of tensor names and shapes, what each becomes in memory, and the packing itself.

#include "base/accounts.h"
#include "base/pool.h"
#include "base/result.h"
#include "gguf/gguf.h"
#include "kernels/kernels.h"
#include "kernels/tune.h"
#include "model/layer_ring.h"
#include "model/spec.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tally::model {

enum class Slot : uint8_t {
  kTokenEmbd,
  kTokenNorm,
  kPositionEmbd,
  kOutput,
  kOutputNorm,
  kRopeFreqs,
  kRopeLong,
  kRopeShort,
  kAttnNorm,
  kAttnQ,  // behind kAttnQDown where q is of low rank
  kAttnK,  // of latent attention: the part that is not rotated, from the latent
  kAttnV,
  kAttnOut,
  kAttnQNorm,
  kAttnKNorm,
  kAttnQDown,
  kAttnQDownNorm,
  kAttnKvDown,  // to the latent and the rotated part of K
  kAttnKvDownNorm,
  kAttnSinks,
  kPostAttnNorm,
  kFfnNorm,
  kFfnGate,
  kFfnUp,
  kFfnDown,
  kPostFfnNorm,
  kRouter,
  kRouterSelection,  // added to the scores for the choice only
  kExpertGate,
  kExpertUp,
  kExpertDown,
  kSharedGate,
  kSharedUp,
  kSharedDown,
  kSharedScale,
  kCount,
};

// A matrix as the linear kernels want it.
struct Matrix {
  const kernels::LinearFormat* format = nullptr;  // null: absent
  uint32_t rows = 0, k = 0;
  const std::byte* data = nullptr;  // of the first expert
  size_t expert_step = 0;           // from one expert's data to the next
};

// What a tensor of the file becomes.
enum class Placement : uint8_t {
  kPacked,  // groups of 32 rows for the linear kernels
  kRows,    // GGUF rows as they are: an embedding that is not also the output matrix
  kVector,  // f32
};

// Which rows of the tensor (of a vector: which values): runs of `run` rows, `period` apart, from `first` on.
struct RowMap {
  uint64_t first = 0, run = UINT64_MAX, period = 0;
  uint64_t at(uint64_t row) const {
    return run == UINT64_MAX ? first + row : first + row / run * period + row % run;
  }
};

struct WeightEntry {
  Slot slot = Slot::kCount;
  bool bias = false;
  bool transposed = false;  // runs of rows of the tensor are columns of the matrix: dequantized to be packed
  uint32_t layer = 0;
  uint32_t expert = 0;
  uint32_t rows = 1, columns = 0;
  RowMap map;
  const gguf::TensorInfo* tensor = nullptr;  // valid as long as the file is open: while loading
  Placement placement = Placement::kVector;
  const kernels::LinearFormat* source = nullptr;  // of the file's type
  const kernels::LinearFormat* target = nullptr;  // what it is packed as
  size_t offset = 0, bytes = 0;                   // in the arena; of a streamed one in the ring
  int32_t turn = -1;                              // of a streamed one: WeightPlan::slices
};

// The matrices of a layer that are read in every pass.
struct StreamSlice {
  uint32_t layer = 0;
  size_t bytes = 0;  // in the file: whole pages
};

struct WeightPlan {
  std::vector<WeightEntry> entries;
  std::vector<std::string> unused;  // tensors of the file that nothing reads
  size_t bytes = 0;                 // of the arena, tail padding included
  std::vector<StreamSlice> slices;  // in the order of the pass; empty: all is in the arena
  size_t slot_bytes = 0;            // of the ring, whose slots hold the longest slice and the tail padding

  size_t ring_bytes() const {
    return LayerRing::slots_for(static_cast<uint32_t>(slices.size())) * slot_bytes;
  }
  size_t read_bytes() const;  // of a pass
};
// Moves the matrices of `layers` layers, evenly spread over the model, from the arena to the ring. What all
// layers share, and vectors, stay. Requires: at most the layers of the model, and none was moved before.
void stream_layers(WeightPlan& plan, uint32_t layers, uint32_t of_layers);
// The bytes by what they are for.
std::vector<std::pair<std::string, size_t>> size_parts(const WeightPlan& plan);

// Binds every row of the table to the file. Errors: kBadData naming the tensor and both shapes or the type.
base::Result<WeightPlan> plan_weights(const gguf::File& file, const ModelSpec& spec,
                                      const kernels::KernelTable& kernels, bool dequantize_to_f32);

// Where streamed layers are kept.
struct StreamPlace {
  std::string directory, fingerprint;
};

// Immutable once loaded; of streamed layers the slots of the ring are written, between turns.
class Weights {
 public:
  // Knows formats and shapes, holds no data: what the plan's size functions need.
  static Weights bind(WeightPlan plan, const ModelSpec& spec);
  // Reads and packs what stays, with every thread of the pool; start_stream() does the rest. Errors: kIo,
  // kBadData (file cut meanwhile), kUnavailable (the cap, or `progress` said stop).
  static base::Result<Weights> load(const gguf::File& file, WeightPlan plan, const ModelSpec& spec,
                                    base::ThreadPool& pool, base::Accounts& accounts,
                                    const std::function<bool(uint64_t, uint64_t)>& progress);

  bool has(Slot slot, uint32_t layer = 0) const { return find(slot, false, layer) != nullptr; }
  Matrix matrix(Slot slot, uint32_t layer = 0) const;
  std::vector<kernels::TuneMatrix> matrices() const;         // every packed one that stays in memory
  const float* vector(Slot slot, uint32_t layer = 0) const;  // null: absent
  const float* bias(Slot slot, uint32_t layer = 0) const;    // null: absent
  // Of a vector that is there: values a row, and rows (one for each head, or 1).
  uint32_t columns(Slot slot, uint32_t layer = 0) const { return find(slot, false, layer)->columns; }
  uint32_t rows(Slot slot, uint32_t layer = 0) const { return find(slot, false, layer)->rows; }
  // Row `id` of a table (token or position embedding) as f32 [embedding].
  void row(Slot slot, uint32_t id, float* out) const;
  // Bytes of the matrices that the forward of one row reads.
  uint64_t matrix_bytes() const;
  // Values of the matrices that a row is multiplied with: of the one that makes logits, or of all others.
  uint64_t matrix_values(bool is_tied, bool of_logits) const;
  // Where layers are streamed: what brings them, and a matrix' turn in it, -1 of one that stays.
  LayerRing* ring() const { return ring_.get(); }
  int32_t turn(Slot slot, uint32_t layer) const { return find(slot, false, layer)->turn; }
  // Opens the file of the plan's slices in a directory, or makes it, and starts the ring. `fingerprint` is of
  // the GGUF file and of what else decides packed bytes. Errors: kIo, kUnavailable (cap), kBadData.
  base::Result<void> start_stream(const gguf::File& file, const StreamPlace& place, base::ThreadPool& pool,
                                  base::Accounts& accounts);

 private:
  base::Result<void> read(const gguf::File& file, base::ThreadPool& pool,
                          const std::function<bool(uint64_t, uint64_t)>& progress);
  base::Result<std::span<const std::byte>> pack_slice(const gguf::File& file, uint32_t slice,
                                                      base::ThreadPool& pool);
  std::byte* slot(uint32_t turn) const {
    const uint32_t slots = LayerRing::slots_for(static_cast<uint32_t>(plan_.slices.size()));
    return ring_arena_.data() + turn % slots * plan_.slot_bytes;
  }
  base::Result<LayerFile> find_or_make(const gguf::File& file, const StreamPlace& place,
                                       base::ThreadPool& pool);
  const WeightEntry* find(Slot slot, bool bias, uint32_t layer) const;
  const std::byte* data(const WeightEntry& entry) const {
    const base::Arena& arena = entry.turn < 0 ? arena_ : ring_arena_;
    return arena.data() == nullptr ? nullptr : arena.data() + entry.offset;
  }
  WeightPlan plan_;
  std::vector<int32_t> index_;  // [slot][bias][layer] -> entry (of its first expert) or -1
  uint32_t layers_ = 0, experts_used_ = 1;
  base::Arena arena_, ring_arena_;
  std::unique_ptr<LayerRing> ring_;  // last: its threads write into the arena
};

}  // namespace tally::model
