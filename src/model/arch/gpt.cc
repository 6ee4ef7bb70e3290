// GPT-2, BLOOM and GPT-NeoX: LayerNorm with bias, a plain MLP.
#include "model/arch/arch.h"

namespace tally::model {

base::Result<void> read_gpt2(const gguf::File&, ModelSpec& spec) {
  spec.norm.kind = NormKind::kLayer;
  spec.ffn = {Activation::kGeluTanh, false};
  spec.learned_positions = true;
  return {};
}

base::Result<void> read_bloom(const gguf::File&, ModelSpec& spec) {
  spec.norm.kind = NormKind::kLayer;
  spec.norm.embedding = true;
  spec.ffn = {Activation::kGeluTanh, false};
  spec.attention.alibi_bias_max = 8;
  return {};
}

base::Result<void> read_gptneox(const gguf::File& file, ModelSpec& spec) {
  spec.norm.kind = NormKind::kLayer;
  spec.ffn = {Activation::kGeluErf, false};
  TALLY_TRY(const auto parallel, file.get_bool("gptneox.use_parallel_residual"));
  spec.parallel = parallel.value_or(true);
  set_rope(spec, RopeKind::kNeox);
  return {};
}

}  // namespace tally::model
