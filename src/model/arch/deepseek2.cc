// DeepSeek 2 and 3: latent attention, expanded to full heads; experts behind some dense layers, one used by
// every token.
#include "model/arch/arch.h"

#include <cmath>

namespace tally::model {

base::Result<void> read_deepseek2(const gguf::File& file, ModelSpec& spec) {
  AttentionSpec& at = spec.attention;
  TALLY_TRY(const uint64_t kv_rank, file.require_uint("deepseek2.attention.kv_lora_rank", 1, 1u << 16));
  TALLY_TRY(const auto q_rank, file.get_uint("deepseek2.attention.q_lora_rank", 0, 1u << 16));
  at.latent = {static_cast<uint32_t>(q_rank.value_or(0)), static_cast<uint32_t>(kv_rank)};
  // Files made for attention over the latent itself say the latent's sizes in key_length and value_length.
  TALLY_TRY(const auto key_dim, file.get_uint("deepseek2.attention.key_length_mla", 1, 1u << 16));
  TALLY_TRY(const auto value_dim, file.get_uint("deepseek2.attention.value_length_mla", 1, 1u << 16));
  at.key_dim = static_cast<uint32_t>(key_dim.value_or(at.key_dim));
  at.value_dim = static_cast<uint32_t>(value_dim.value_or(at.value_dim));
  for (LayerSpec& layer : spec.layer) layer.kv_heads = layer.heads;
  at.kv_heads = at.heads;
  set_rope(spec, RopeKind::kNorm);

  // With YaRN and a multiplier the scores are scaled in place of cos and sin. The file has a tenth of the
  // published one.
  TALLY_TRY(const auto log_multiplier, file.get_float("deepseek2.rope.scaling.yarn_log_multiplier"));
  if (const RopeSpec& rope = spec.layer[0].rope; log_multiplier && rope.ext_factor > 0 && rope.factor > 1) {
    const double scale = 1 + *log_multiplier * std::log(rope.factor);
    at.score_scale = static_cast<float>(scale * scale / std::sqrt(static_cast<double>(at.key_dim)));
    for (LayerSpec& layer : spec.layer) layer.rope.magnitude = 1;
  }
  return {};
}

}  // namespace tally::model
