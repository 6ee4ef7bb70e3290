// LayerNorm decoders with rope on halves: StarCoder 2, StableLM, Nemotron.
#include "model/arch/arch.h"

namespace tally::model {

base::Result<void> read_starcoder2(const gguf::File&, ModelSpec& spec) {
  spec.norm.kind = NormKind::kLayer;
  spec.ffn = {Activation::kGeluTanh, false};
  set_rope(spec, RopeKind::kNeox);
  return {};
}

// The branches are side by side where they share a norm. The key use_parallel_residual does not say it: files
// whose model had no such setting say yes.
base::Result<void> read_stablelm(const gguf::File& file, ModelSpec& spec) {
  spec.norm.kind = NormKind::kLayer;
  spec.parallel = !has_ffn_norm(file);
  set_rope(spec, RopeKind::kNeox);
  return {};
}

base::Result<void> read_nemotron(const gguf::File&, ModelSpec& spec) {
  spec.norm.kind = NormKind::kLayer;
  spec.ffn = {Activation::kRelu2, false};
  set_rope(spec, RopeKind::kNeox);
  return {};
}

}  // namespace tally::model
