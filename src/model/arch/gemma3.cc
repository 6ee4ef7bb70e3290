// Gemma 3: sandwich norms, per-head q and k norms, GeGLU, scaled embedding; five sliding layers with their
// own unscaled rope base, then one that sees everything with the scaled one.
#include "model/arch/arch.h"

#include <cmath>

namespace tally::model {

base::Result<void> read_gemma3(const gguf::File& file, ModelSpec& spec) {
  constexpr uint64_t kPeriod = 6;
  constexpr uint32_t kLayersOf27B = 62;  // scores scaled by embedding / heads, not by key_length
  spec.norm.sandwich = true;
  spec.attention.qk_norm = true;
  spec.ffn.activation = Activation::kGeluTanh;
  spec.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(spec.embedding)));
  if (spec.layers == kLayersOf27B) {
    const double width = static_cast<double>(spec.embedding) / spec.attention.heads;
    spec.attention.score_scale = static_cast<float>(1.0 / std::sqrt(width));
  }

  TALLY_TRY(const auto window, file.get_uint("gemma3.attention.sliding_window", 0, UINT32_MAX));
  TALLY_TRY(const auto base_swa, file.get_float("gemma3.rope.freq_base_swa"));
  TALLY_TRY(const std::vector<bool> slides,
            read_window_pattern(file, "gemma3.attention.sliding_window_pattern", spec, kPeriod));
  for (size_t i = 0; i < spec.layer.size(); ++i) {
    LayerSpec& layer = spec.layer[i];
    layer.rope.kind = RopeKind::kNeox;
    if (window.value_or(0) == 0 || !slides[i]) continue;
    layer.window = static_cast<uint32_t>(*window);
    layer.rope.base = base_swa.value_or(10000.0);
    layer.rope.factor = 1;
  }
  return {};
}

}  // namespace tally::model
