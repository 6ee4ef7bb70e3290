#pragma once
// The flat program of a model: spec + weights -> stages of instructions, made once at load; run() is the
// interpreter.
//
// A stage is what runs between two barriers:
//   rows     row-wise instructions, one after the other on blocks of 16 rows
//   linear   matrices with the same panel, cut into chunks of row groups
//   attend   tiles of rows x KV heads
// Per-op time is taken here and nowhere else.

#include "base/pool.h"
#include "kernels/kernels.h"
#include "kv/view.h"
#include "model/model.h"
#include "model/weights.h"

#include <array>
#include <cstdint>
#include <vector>

namespace tally::model {

// Named activations, [rows][width] f32 each. kHead and kLogits have one row for each wanted logits row.
enum class Buf : uint8_t {
  kResidual,
  kNormed,
  kQ,
  kK,
  kV,
  kAttended,
  kBranch,
  kGate,
  kUp,
  kHead,
  kLogits,
  kCount,
};
inline constexpr size_t kBufs = static_cast<size_t>(Buf::kCount);

enum class Op : uint8_t {
  kEmbed,     // dst = embedding of the row's token
  kScale,     // dst *= value
  kNorm,      // dst = rms_norm(src) * vector
  kHeadNorm,  // as kNorm on each head of `width` values
  kPanel,     // panel[kind] = quantized src
  kLinear,    // dst = matrix * panel
  kBias,      // dst += vector
  kRope,      // rotates each head of `width` values of dst
  kStoreKv,   // writes K and V of the row into the cache
  kAttend,    // dst = attention of src over the cache
  kAdd,       // dst += src
  kGateAct,   // dst = act(dst) * src
  kGather,    // dst = the wanted rows of src
  kSoftcap,   // dst = value * tanh(dst / value)
};

// cos and sin of every position for one rope spec: [context][pairs][2] f32.
struct RopeTable {
  RopeSpec spec;
  const float* cos_sin = nullptr;
};

struct Instruction {
  Op op = Op::kAdd;
  Buf src = Buf::kResidual, dst = Buf::kResidual;
  uint32_t layer = 0;
  uint32_t width = 0;  // of a head for kHeadNorm and kRope
  float value = 0;     // kScale, kSoftcap
  float norm_eps = 0;  // kNorm, kHeadNorm
  const float* vector = nullptr;
  Matrix matrix{};
  kernels::PanelKind panel = kernels::PanelKind::kF32;
  const RopeTable* rope = nullptr;
  Activation activation = Activation::kSilu;
};

enum class StageKind : uint8_t { kRows, kHeadRows, kLinear, kHeadLinear, kAttend };

// One item of a linear stage.
struct Chunk {
  uint32_t instruction = 0;
  uint32_t group_begin = 0, group_end = 0;
};

struct Stage {
  StageKind kind = StageKind::kRows;
  uint32_t begin = 0, end = 0;  // instructions
  std::vector<Chunk> chunks;    // linear stages
};

struct Program {
  std::vector<Instruction> code;
  std::vector<Stage> stages;
  std::array<uint32_t, kBufs> width{};                   // values a row; 0: not used
  std::array<uint32_t, kernels::kPanelKinds> panel_k{};  // longest input of each panel kind; 0: not used
  uint32_t heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  float score_scale = 0, softcap = 0;
  std::vector<uint32_t> window;  // [layers]
};

// Builds the program. `weights` may be bound only (for sizes), its pointers are null then. `ropes` has one
// table for each distinct rope of the spec and must outlive the program. Shapes were checked when the weights
// were bound.
Program build_program(const ModelSpec& spec, const Weights& weights, const std::vector<RopeTable>& ropes,
                      size_t threads);

// Where each buffer lies in the scratch arena: buffers that are never live together share bytes.
struct ScratchLayout {
  std::array<size_t, kBufs> buf{};
  std::array<size_t, kernels::kPanelKinds> panel{};
  size_t worker_begin = 0, worker_bytes = 0;  // attention scratch of each worker
  size_t bytes = 0;
};
ScratchLayout lay_out_scratch(const Program& program, const StepLimits& limits, size_t attend_bytes,
                              size_t threads);

// What the interpreter needs of a step.
struct StepContext {
  const Batch* batch = nullptr;
  const kv::View* kv = nullptr;
  const Weights* weights = nullptr;
  const kernels::KernelTable* kernels = nullptr;
  Scratch::State* scratch = nullptr;
};

void run(const Program& program, const StepContext& step, base::ThreadPool& pool);

}  // namespace tally::model
