// Llama 1-3, Mistral, Yi, SmolLM2: pre-norm, SwiGLU, rope on neighbouring pairs (the converter permuted the q
// and k rows).
#include "model/arch/arch.h"

#include <fmt/format.h>

namespace tally::model {

base::Result<void> read_llama(const gguf::File& file, ModelSpec& spec) {
  TALLY_TRY(const auto experts, file.get_uint("llama.expert_count", 0, 1024));
  if (experts.value_or(0) > 0) {
    return base::Error{
        base::ErrorCode::kBadData,
        fmt::format("llama.expert_count {}: mixture-of-experts models are not supported yet", *experts)};
  }
  for (LayerSpec& layer : spec.layer) layer.rope.kind = RopeKind::kNorm;
  return {};
}

}  // namespace tally::model
