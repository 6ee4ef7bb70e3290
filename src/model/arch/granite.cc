// Granite, dense and with experts: scaled embedding, residual, scores and logits. The file's logit scale
// divides.
#include "model/arch/arch.h"

namespace tally::model {

base::Result<void> read_granite(const gguf::File& file, ModelSpec& spec) {
  TALLY_TRY(const auto rope, file.get_bool(spec.architecture + ".rope.scaling.finetuned"));
  set_rope(spec, rope.value_or(true) ? RopeKind::kNorm : RopeKind::kNone);
  spec.scale.logits = 1 / spec.scale.logits;
  spec.moe.gating = kernels::Gating::kSoftmaxOfChosen;
  return {};
}

}  // namespace tally::model
