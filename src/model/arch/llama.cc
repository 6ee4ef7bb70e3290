// Llama and the families that are llama but for a detail. Pre-norm, SwiGLU; biases, fused matrices and norms
// of q and k are there if their tensors are.
#include "model/arch/arch.h"

namespace tally::model {

// Llama 1-3, Mistral, Mixtral, Yi, SmolLM2: rope on neighbouring pairs (the converter permuted the q and k
// rows).
base::Result<void> read_llama(const gguf::File&, ModelSpec& spec) {
  spec.moe.normalize = true;
  set_rope(spec, RopeKind::kNorm);
  return {};
}

// Qwen 2, Phi 3, EXAONE 3, Seed: llama with rope on halves. Phi 3 files carry wrong windows: ignored, as
// llama.cpp does.
base::Result<void> read_neox_llama(const gguf::File&, ModelSpec& spec) {
  set_rope(spec, RopeKind::kNeox);
  return {};
}

// Arcee: no gate, squared ReLU.
base::Result<void> read_arcee(const gguf::File&, ModelSpec& spec) {
  spec.ffn = {Activation::kRelu2, false};
  set_rope(spec, RopeKind::kNorm);
  return {};
}

// SmolLM3: every fourth layer has no rope.
base::Result<void> read_smollm3(const gguf::File&, ModelSpec& spec) {
  set_rope(spec, RopeKind::kNorm);
  for (size_t i = 3; i < spec.layer.size(); i += 4) spec.layer[i].rope.kind = RopeKind::kNone;
  return {};
}

}  // namespace tally::model
