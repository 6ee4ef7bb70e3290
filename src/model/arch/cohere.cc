// Command R and Cohere 2: LayerNorm, attention and FFN side by side, scaled logits.
#include "model/arch/arch.h"

namespace tally::model {

base::Result<void> read_command_r(const gguf::File&, ModelSpec& spec) {
  spec.norm.kind = NormKind::kLayer;
  spec.parallel = true;
  set_rope(spec, RopeKind::kNorm);
  return {};
}

// Three of four layers slide; those that see everything have no rope.
base::Result<void> read_cohere2(const gguf::File& file, ModelSpec& spec) {
  TALLY_TRY_VOID(read_command_r(file, spec));
  TALLY_TRY(const auto slides, read_windows(file, spec, {.period = 4}));
  for (size_t i = 0; i < spec.layer.size(); ++i) {
    if (!slides[i]) spec.layer[i].rope.kind = RopeKind::kNone;
  }
  return {};
}

}  // namespace tally::model
