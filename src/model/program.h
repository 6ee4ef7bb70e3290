#pragma once
// The flat program of a model: spec + weights -> stages of instructions, made once at load; run() is the
// interpreter.
//
// A stage is what runs between two barriers:
//   rows     row-wise instructions, one after the other on blocks of 16 rows
//   linear   matrices with the same panel, cut into chunks of row groups
//   attend   rows x spans x KV heads (attend_stage.h)
//   expert   the same of a mixture of experts: each expert's rows lie together in slots and run as one batch
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

// Named activations, f32, [rows][width] each; those of kHead and kLogits have a row for each wanted logits
// row, those of kExpert* one for each slot.
enum class Buf : uint8_t {
  kResidual,
  kNormed,
  kFfnIn,  // where attention and FFN run side by side with a norm each; at first the embedding of the
           // position
  kQDown,
  kLatent,  // of latent attention: what K and V are made from, then the rotated part of K
  kKeyPart,
  kQ,
  kK,
  kV,
  kAttended,
  kBranch,
  kGate,
  kUp,
  kRouter,
  kShared,
  kSharedScale,
  kExpertIn,
  kExpertGate,
  kExpertUp,
  kExpertOut,
  kHead,
  kLogits,
  kCount,
};
inline constexpr size_t kBufs = static_cast<size_t>(Buf::kCount);

enum class Op : uint8_t {
  kEmbed,          // dst = embedding of the row's token
  kEmbedPosition,  // dst = embedding of the row's position
  kScale,          // dst *= value
  kNorm,           // dst = norm(src) * vector + bias, over each run of `width` values
  kPanel,          // panel[kind] = quantized src
  kLinear,         // dst = matrix * panel
  kBias,           // dst += vector
  kClamp,          // dst = min(max(dst, -value), value)
  kRope,           // rotates each head of `width` values of dst, from `offset` in it on
  kAssembleKeys,   // dst = for each head the head's values of src, then the end of kLatent
  kStoreKv,        // writes K (src) and V (dst) of the row into the cache
  kAttend,         // dst = attention of src over the cache
  kAdd,            // dst += value * src
  kAct,            // dst = act(dst)
  kGateAct,        // dst = act(dst) * src
  kRoute,          // chooses the row's experts by src
  kExpertGather,   // dst of a slot = src of its row
  kExpertBias,     // dst of a slot += the expert's vector
  kExpertSum,      // dst of a row = weighted sum of src of its slots, best expert first
  kSigmoidScale,   // dst *= sigmoid(src[0])
  kGather,         // dst = the wanted rows of src
  kSoftcap,        // dst = value * tanh(dst / value)
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
  uint32_t n = 0;      // values of a row
  uint32_t width = 0;  // of a head or a norm
  uint32_t offset = 0;
  float value = 0;  // kScale, kSoftcap, kClamp, kAdd; eps of kNorm
  const float* vector = nullptr;
  const float* bias = nullptr;
  uint32_t vector_step = 0;  // kNorm: of `vector` from run to run
  Matrix matrix{};
  kernels::PanelKind panel = kernels::PanelKind::kF32;
  const RopeTable* rope = nullptr;
};

enum class StageKind : uint8_t {
  kRows,
  kHeadRows,
  kLinear,
  kHeadLinear,
  kAttend,
  kExpertRows,
  kExpertLinear
};

// One item of a linear stage; of each active expert in an expert's.
struct Chunk {
  uint32_t instruction = 0;
  uint32_t group_begin = 0, group_end = 0;
};

struct Stage {
  StageKind kind = StageKind::kRows;
  uint32_t begin = 0, end = 0;  // instructions
  std::vector<Chunk> chunks;    // linear stages
  int32_t turn = -1;            // of streamed matrices: when they are there (layer_ring.h)
};

// What the attention of a layer needs beside its instruction.
struct LayerAttention {
  uint32_t heads = 0, kv_heads = 0;
  uint32_t window = 0;
  const float* sinks = nullptr;  // [heads]
  std::vector<float> alibi;      // [heads] or empty
};

struct Program {
  std::vector<Instruction> code;
  std::vector<Stage> stages;
  std::array<uint32_t, kBufs> width{};                   // values a row; 0: not used
  std::array<uint32_t, kernels::kPanelKinds> panel_k{};  // longest input of each panel kind; 0: not used
  std::array<uint32_t, kernels::kPanelKinds> expert_panel_k{};  // of the panels of slots
  uint32_t key_dim = 0, value_dim = 0;
  float score_scale = 0, softcap = 0;
  NormKind norm = NormKind::kRms;
  Activation activation = Activation::kSilu;
  MoeSpec moe;
  std::vector<LayerAttention> attention;  // [layers]

  uint32_t width_of(Buf b) const { return width[static_cast<size_t>(b)]; }
};

// Slots of a step of `rows` rows: every expert's slots begin at a multiple of 16.
size_t expert_slots(const MoeSpec& moe, size_t rows);

// Builds the program. `weights` may be bound only (for sizes), its pointers are null then. `ropes` has one
// table for each distinct rope of the spec and must outlive the program. Shapes were checked when the weights
// were bound.
Program build_program(const ModelSpec& spec, const Weights& weights, const std::vector<RopeTable>& ropes,
                      size_t threads);

// Where each buffer lies in the scratch arena: buffers that are never live together share bytes.
struct ScratchLayout {
  std::array<size_t, kBufs> buf{};
  std::array<size_t, kernels::kPanelKinds> panel{}, expert_panel{};
  size_t attend_states = 0, attend_states_max = 0;  // where they are, in bytes; how many floats
  size_t worker_begin = 0, worker_bytes = 0;        // attention scratch of each worker
  size_t shared_queries = 0;                        // in that: the queries of a share, behind the kernel's
  size_t bytes = 0;
};
ScratchLayout lay_out_scratch(const Program& program, const StepLimits& limits, size_t attend_bytes,
                              size_t threads);

struct KvProbe;

// What the interpreter needs of a step.
struct StepContext {
  const Batch* batch = nullptr;
  const kv::View* kv = nullptr;
  const Weights* weights = nullptr;
  const kernels::KernelTable* kernels = nullptr;
  Scratch::State* scratch = nullptr;

  KvProbe* probe = nullptr;  // none, but in Model::kv_damage

  kernels::KvSequence sequence(const kv::View& view, uint32_t layer, const Segment& segment) const {
    const LayerIdx idx{layer};
    return {&view.layout(idx), view.layer(idx), batch->tables.data() + segment.table_begin};
  }
};

void run(const Program& program, const StepContext& step, base::ThreadPool& pool);

}  // namespace tally::model
