#pragma once
// The one table of tensor names and shapes, what each becomes in memory, and the packing itself.

#include "base/accounts.h"
#include "base/pool.h"
#include "base/result.h"
#include "gguf/gguf.h"
#include "kernels/kernels.h"
#include "kernels/tune.h"
#include "model/spec.h"

#include <cstdint>
#include <functional>
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
  size_t offset = 0, bytes = 0;                   // in the arena
};

struct WeightPlan {
  std::vector<WeightEntry> entries;
  std::vector<std::string> unused;  // tensors of the file that nothing reads
  size_t bytes = 0;                 // of the arena, tail padding included
};
// The bytes by what they are for.
std::vector<std::pair<std::string, size_t>> size_parts(const WeightPlan& plan);

// Binds every row of the table to the file. Errors: kBadData naming the tensor and both shapes or the type.
base::Result<WeightPlan> plan_weights(const gguf::File& file, const ModelSpec& spec,
                                      const kernels::KernelTable& kernels, bool dequantize_to_f32);

// Immutable once loaded.
class Weights {
 public:
  // Knows formats and shapes, holds no data: what the plan's size functions need.
  static Weights bind(WeightPlan plan, const ModelSpec& spec);
  // Reads and packs with every thread of the pool. Errors: kIo, kBadData (file cut meanwhile), kUnavailable
  // (the cap, or `progress` said stop).
  static base::Result<Weights> load(const gguf::File& file, WeightPlan plan, const ModelSpec& spec,
                                    base::ThreadPool& pool, base::Accounts& accounts,
                                    const std::function<bool(uint64_t, uint64_t)>& progress);

  bool has(Slot slot, uint32_t layer = 0) const { return find(slot, false, layer) != nullptr; }
  Matrix matrix(Slot slot, uint32_t layer = 0) const;
  std::vector<kernels::TuneMatrix> matrices() const;         // every packed one
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

 private:
  base::Result<void> read(const gguf::File& file, base::ThreadPool& pool,
                          const std::function<bool(uint64_t, uint64_t)>& progress);
  const WeightEntry* find(Slot slot, bool bias, uint32_t layer) const;
  const std::byte* data(const WeightEntry& entry) const {
    return arena_.data() == nullptr ? nullptr : arena_.data() + entry.offset;
  }
  WeightPlan plan_;
  std::vector<int32_t> index_;  // [slot][bias][layer] -> entry (of its first expert) or -1
  uint32_t layers_ = 0, experts_used_ = 1;
  base::Arena arena_;
};

}  // namespace tally::model
