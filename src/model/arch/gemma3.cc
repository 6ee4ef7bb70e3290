// Gemma 3: Gemma 2 without caps, with norms of q and k; five sliding layers with their own unscaled rope
// base, then one that sees everything with the scaled one.
#include "model/arch/arch.h"

namespace tally::model {

base::Result<void> read_gemma3(const gguf::File& file, ModelSpec& spec) {
  constexpr uint32_t kLayersOf27B = 62;
  TALLY_TRY_VOID(read_gemma(file, spec));
  spec.norm.post = true;
  if (spec.layers == kLayersOf27B) scale_scores_by_width(spec);
  TALLY_TRY(const auto slides, read_windows(file, spec, {.period = 6, .rope_base = 10000}));
  for (size_t i = 0; i < spec.layer.size(); ++i) {
    if (slides[i]) unscale_rope(spec.layer[i].rope);
  }
  return {};
}

}  // namespace tally::model
