// Gemma 1 and 2: GeGLU, scaled embedding; Gemma 2 with sandwich norms, caps and every other layer sliding.
#include "model/arch/arch.h"

#include <cmath>

namespace tally::model {

base::Result<void> read_gemma(const gguf::File&, ModelSpec& spec) {
  spec.ffn.activation = Activation::kGeluTanh;
  spec.scale.embedding = static_cast<float>(std::sqrt(static_cast<double>(spec.embedding)));
  set_rope(spec, RopeKind::kNeox);
  return {};
}

base::Result<void> read_gemma2(const gguf::File& file, ModelSpec& spec) {
  constexpr uint32_t kLayersOf27B = 46;  // scores scaled by embedding / heads, not by key_length
  TALLY_TRY_VOID(read_gemma(file, spec));
  spec.norm.post = true;
  if (spec.layers == kLayersOf27B) scale_scores_by_width(spec);
  // The first files had no keys for the caps and the window.
  if (file.find("gemma2.attn_logit_softcapping") == nullptr) spec.attention.softcap = 50;
  if (file.find("gemma2.final_logit_softcapping") == nullptr) spec.scale.final_softcap = 30;
  TALLY_TRY(const auto slides, read_windows(file, spec, {.period = 2, .window = 4096}));
  return {};
}

}  // namespace tally::model
