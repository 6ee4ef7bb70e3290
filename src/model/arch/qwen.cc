// Qwen mixtures of experts, and Qwen 3 with its norms of q and k.
#include "model/arch/arch.h"

namespace tally::model {

namespace {

// The first files say the experts' width only as a part of the whole.
base::Result<void> share_width(const gguf::File& file, ModelSpec& spec) {
  const std::string key = spec.architecture + ".expert_used_count";
  const gguf::Value* used = file.find(key);
  if (used == nullptr || std::holds_alternative<gguf::Array>(used->data)) return {};
  TALLY_TRY(const uint64_t count, file.require_uint(key, 1, UINT32_MAX));
  spec.moe.hidden = spec.layer[0].hidden / static_cast<uint32_t>(count);
  return {};
}

}  // namespace

// Weights of the chosen experts as the softmax over all gave them; a gated expert that every token uses.
base::Result<void> read_qwen2moe(const gguf::File& file, ModelSpec& spec) {
  set_rope(spec, RopeKind::kNeox);
  spec.moe.shared_hidden = spec.layer[0].hidden;
  return share_width(file, spec);
}

base::Result<void> read_qwen3(const gguf::File& file, ModelSpec& spec) {
  TALLY_TRY_VOID(share_width(file, spec));
  spec.moe.normalize = true;
  set_rope(spec, RopeKind::kNeox);
  return {};
}

}  // namespace tally::model
