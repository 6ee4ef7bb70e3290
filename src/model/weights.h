#pragma once
// The one table of tensor names and shapes, what each becomes in memory, and the packing itself.

#include "base/accounts.h"
#include "base/pool.h"
#include "base/result.h"
#include "gguf/gguf.h"
#include "kernels/kernels.h"
#include "model/spec.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tally::model {

enum class Slot : uint8_t {
  kTokenEmbd,
  kOutput,
  kOutputNorm,
  kRopeFreqs,
  kAttnNorm,
  kAttnQ,
  kAttnK,
  kAttnV,
  kAttnOut,
  kAttnQNorm,
  kAttnKNorm,
  kPostAttnNorm,
  kFfnNorm,
  kFfnGate,
  kFfnUp,
  kFfnDown,
  kPostFfnNorm,
  kCount,
};

// A matrix as the linear kernels want it.
struct Matrix {
  const kernels::LinearFormat* format = nullptr;  // null: absent
  uint32_t rows = 0, k = 0;
  const std::byte* data = nullptr;
};

// What a tensor of the file becomes.
enum class Placement : uint8_t {
  kPacked,  // groups of 32 rows for the linear kernels
  kRows,    // GGUF rows as they are: an embedding that is not also the output matrix
  kVector,  // f32
};

struct WeightEntry {
  Slot slot = Slot::kCount;
  bool bias = false;
  uint32_t layer = 0;
  uint32_t rows = 1, columns = 0;
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

  Matrix matrix(Slot slot, uint32_t layer = 0) const;
  const float* vector(Slot slot, uint32_t layer = 0) const;  // null: absent
  const float* bias(Slot slot, uint32_t layer = 0) const;    // null: absent
  // Row `id` of the embedding as f32 [embedding].
  void embed(uint32_t id, float* out) const;
  // Bytes of the matrices that every forward reads.
  uint64_t matrix_bytes() const;

 private:
  base::Result<void> read(const gguf::File& file, base::ThreadPool& pool,
                          const std::function<bool(uint64_t, uint64_t)>& progress);
  const WeightEntry* find(Slot slot, bool bias, uint32_t layer) const;
  const std::byte* data(const WeightEntry& entry) const {
    return arena_.data() == nullptr ? nullptr : arena_.data() + entry.offset;
  }
  WeightPlan plan_;
  std::vector<int32_t> index_;  // [slot][bias][layer] -> entry or -1
  uint32_t layers_ = 0;
  const WeightEntry* embedding_ = nullptr;  // points into plan_.entries, whose storage never moves
  base::Arena arena_;
};

}  // namespace tally::model
