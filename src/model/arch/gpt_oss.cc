// gpt-oss: attention sinks, every other layer sliding, experts with biases and a clamped gate.
#include "model/arch/arch.h"

namespace tally::model {

base::Result<void> read_gpt_oss(const gguf::File& file, ModelSpec& spec) {
  spec.ffn.activation = Activation::kSwigluOai;
  spec.moe.gating = kernels::Gating::kSoftmaxOfChosen;
  set_rope(spec, RopeKind::kNeox);
  TALLY_TRY(const auto slides, read_windows(file, spec, {.period = 2}));
  return {};
}

}  // namespace tally::model
