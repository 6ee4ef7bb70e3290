// OLMo 1: norms without weights. OLMo 2 and 3: norms only behind the branches. OLMoE: experts, pre-norm.
#include "model/arch/arch.h"

namespace tally::model {

base::Result<void> read_olmo(const gguf::File&, ModelSpec& spec) {
  spec.norm.kind = NormKind::kLayer;
  spec.norm.weights = false;
  set_rope(spec, RopeKind::kNorm);
  return {};
}

// OLMo 3 slides on three layers of four, with the unscaled rope.
base::Result<void> read_olmo2(const gguf::File& file, ModelSpec& spec) {
  spec.norm.pre = false;
  spec.norm.post = true;
  set_rope(spec, RopeKind::kNeox);
  TALLY_TRY(const auto slides, read_windows(file, spec, {.period = 4}));
  for (size_t i = 0; i < spec.layer.size(); ++i) {
    if (slides[i]) unscale_rope(spec.layer[i].rope);
  }
  return {};
}

base::Result<void> read_olmoe(const gguf::File&, ModelSpec& spec) {
  set_rope(spec, RopeKind::kNeox);
  return {};
}

}  // namespace tally::model
