#include "model/spec.h"

#include "base/utf8.h"
#include "model/arch/arch.h"

#include <fmt/format.h>

#include <cmath>

namespace tally::model {
namespace {

using base::Error;
using base::ErrorCode;
using base::Result;

constexpr Arch kArchitectures[] = {
    {"arcee", read_arcee},         {"bloom", read_bloom},
    {"cohere2", read_cohere2},     {"command-r", read_command_r},
    {"deepseek2", read_deepseek2}, {"exaone", read_neox_llama},
    {"exaone4", read_exaone4},     {"falcon", read_falcon},
    {"gemma", read_gemma},         {"gemma2", read_gemma2},
    {"gemma3", read_gemma3},       {"glm4", read_glm4},
    {"gpt-oss", read_gpt_oss},     {"gpt2", read_gpt2},
    {"gptneox", read_gptneox},     {"granite", read_granite},
    {"granitemoe", read_granite},  {"llama", read_llama},
    {"nemotron", read_nemotron},   {"olmo", read_olmo},
    {"olmo2", read_olmo2},         {"olmoe", read_olmoe},
    {"phi2", read_phi2},           {"phi3", read_neox_llama},
    {"qwen2", read_neox_llama},    {"qwen2moe", read_qwen2moe},
    {"qwen3", read_qwen3},         {"qwen3moe", read_qwen3},
    {"seed_oss", read_neox_llama}, {"smollm3", read_smollm3},
    {"stablelm", read_stablelm},   {"starcoder2", read_starcoder2},
};

constexpr uint64_t kLayersMax = 1024;

Error bad(std::string message) { return Error{ErrorCode::kBadData, std::move(message)}; }

Result<float> positive(const gguf::File& file, const std::string& key, double fallback) {
  TALLY_TRY(const auto value, file.get_float(key));
  if (!value) return static_cast<float>(fallback);
  // A double may be beyond what a float can say.
  if (!(static_cast<float>(*value) > 0) || std::isinf(static_cast<float>(*value)))
    return bad(fmt::format("{} is {}: it must be above 0, and a float", key, *value));
  return static_cast<float>(*value);
}

// A number that may be absent and must be at least `min`.
Result<float> at_least(const gguf::File& file, const std::string& key, double fallback, double min) {
  TALLY_TRY(const auto value, file.get_float(key));
  if (value && (!(*value >= min) || std::isinf(static_cast<float>(*value))))
    return bad(fmt::format("{} is {}: it must be at least {}, and a float", key, *value, min));
  return static_cast<float>(value.value_or(fallback));
}

// A factor that may be absent; 0 says the same.
Result<float> factor(const gguf::File& file, const std::string& key) {
  TALLY_TRY(const float value, at_least(file, key, 1, 0));
  return value == 0 ? 1 : value;
}

// A number that may be given for each layer, but must then be the same for all that have one.
Result<uint32_t> same_for_all(const gguf::File& file, const std::string& key, uint32_t fallback,
                              uint64_t max) {
  const gguf::Value* value = file.find(key);
  const auto* array = value == nullptr ? nullptr : std::get_if<gguf::Array>(&value->data);
  if (array == nullptr) {
    TALLY_TRY(const auto given, file.get_uint(key, 0, max));
    return static_cast<uint32_t>(given.value_or(fallback));
  }
  if (array->size() > kLayersMax)
    return bad(fmt::format("{} has {} elements: at most {} are allowed", key, array->size(), kLayersMax));
  TALLY_TRY(const std::vector<uint64_t> values, file.get_uints(key, array->size(), 0, max));
  uint64_t found = 0;
  for (const uint64_t v : values) {
    if (v != 0 && found != 0 && v != found)
      return bad(
          fmt::format("{} is {} in one layer and {} in another: only one value is supported", key, found, v));
    found = v == 0 ? found : v;
  }
  return static_cast<uint32_t>(found);
}

// Keys that change what a forward pass computes and that nothing here reads: a file must not run without
// them.
Result<void> refuse_unsupported(const gguf::File& file, const std::string& a, const ModelSpec& spec) {
  TALLY_TRY(const auto causal, file.get_bool(a + ".attention.causal"));
  if (!causal.value_or(true)) return bad(a + ".attention.causal is false: only causal models can run");
  TALLY_TRY(const auto temperature, file.get_float(a + ".attention.temperature_scale"));
  if (temperature.value_or(0) != 0) {
    return bad(
        fmt::format("{}.attention.temperature_scale is {}: scores that depend on the position are not "
                    "supported, 0 or no such key is",
                    a, *temperature));
  }
  for (const auto& [key, all] : {std::pair{".attention.key_length_swa", spec.attention.key_dim},
                                 std::pair{".attention.value_length_swa", spec.attention.value_dim},
                                 std::pair{".rope.dimension_count_swa", spec.layer[0].rope.rotated}}) {
    TALLY_TRY(const auto swa, file.get_uint(a + key, 0, 1u << 16));
    if (swa && *swa != all) {
      return bad(
          fmt::format("{}{} is {}: only that of the other layers, {}, is supported", a, key, *swa, all));
    }
  }
  return {};
}

Result<void> read_vocabulary(const gguf::File& file, ModelSpec& spec) {
  const gguf::TensorInfo* embd = file.find_tensor("token_embd.weight");
  if (embd == nullptr) return bad("tensor token_embd.weight is missing");
  if (embd->shape.dim[1] < 1 || embd->shape.dim[1] > (1u << 24)) {
    return bad(
        fmt::format("tensor token_embd.weight has {} rows: 1..{} are allowed", embd->shape.dim[1], 1u << 24));
  }
  spec.vocab = static_cast<uint32_t>(embd->shape.dim[1]);
  if (const gguf::Value* tokens = file.find("tokenizer.ggml.tokens")) {
    const auto* array = std::get_if<gguf::Array>(&tokens->data);
    if (array != nullptr && array->size() != spec.vocab) {
      return bad(
          fmt::format("tokenizer.ggml.tokens has {} entries, token_embd.weight {} rows: they must be equal",
                      array->size(), spec.vocab));
    }
  }
  spec.tied_output = file.find_tensor("output.weight") == nullptr;
  return {};
}

Result<void> read_sizes(const gguf::File& file, const std::string& a, ModelSpec& spec) {
  TALLY_TRY(const uint64_t blocks, file.require_uint(a + ".block_count", 1, kLayersMax));
  // Layers at the end that only predict more tokens at once are not part of the forward pass.
  TALLY_TRY(const auto extra, file.get_uint(a + ".nextn_predict_layers", 0, blocks - 1));
  TALLY_TRY(const uint64_t embedding, file.require_uint(a + ".embedding_length", 1, 1u << 20));
  TALLY_TRY(const uint64_t context, file.require_uint(a + ".context_length", 1, 1u << 30));
  spec.layers = static_cast<uint32_t>(blocks - extra.value_or(0));
  spec.embedding = static_cast<uint32_t>(embedding);
  spec.context = static_cast<uint32_t>(context);
  spec.layer.assign(spec.layers, LayerSpec{});
  // One value for all layers or one a layer.
  const auto each = [&](const std::string& key, uint64_t min, uint64_t max,
                        uint32_t LayerSpec::* field) -> Result<bool> {
    TALLY_TRY(const std::vector<uint64_t> values, file.get_uints(a + key, blocks, min, max));
    if (values.empty()) return false;
    for (size_t i = 0; i < spec.layer.size(); ++i) spec.layer[i].*field = static_cast<uint32_t>(values[i]);
    return true;
  };
  TALLY_TRY(const bool hidden, each(".feed_forward_length", 0, 1u << 24, &LayerSpec::hidden));
  if (!hidden) return bad(a + ".feed_forward_length is missing");
  TALLY_TRY(const bool heads, each(".attention.head_count", 1, 4096, &LayerSpec::heads));
  if (!heads) return bad(a + ".attention.head_count is missing");
  TALLY_TRY(const bool kv_heads, each(".attention.head_count_kv", 1, 4096, &LayerSpec::kv_heads));
  for (LayerSpec& layer : spec.layer) {
    if (!kv_heads) layer.kv_heads = layer.heads;
    if (layer.heads % layer.kv_heads == 0) continue;
    return bad(fmt::format("{0}.attention.head_count {1} is no multiple of {0}.attention.head_count_kv {2}",
                           a, layer.heads, layer.kv_heads));
  }
  spec.attention.heads = spec.layer[0].heads, spec.attention.kv_heads = spec.layer[0].kv_heads;
  return read_vocabulary(file, spec);
}

Result<void> read_attention(const gguf::File& file, const std::string& a, ModelSpec& spec) {
  AttentionSpec& at = spec.attention;
  for (const auto& [key, field] : {std::pair{".attention.key_length", &at.key_dim},
                                   std::pair{".attention.value_length", &at.value_dim}}) {
    TALLY_TRY(const auto given, file.get_uint(a + key, 1, 1u << 16));
    *field = static_cast<uint32_t>(given.value_or(spec.embedding / at.heads));
  }
  TALLY_TRY(at.softcap, at_least(file, a + ".attn_logit_softcapping", 0, 0));
  TALLY_TRY(at.clamp, at_least(file, a + ".attention.clamp_kqv", 0, 0));
  TALLY_TRY(at.score_scale, at_least(file, a + ".attention.scale", 0, 0));
  TALLY_TRY(spec.scale.final_softcap, at_least(file, a + ".final_logit_softcapping", 0, 0));
  TALLY_TRY(spec.scale.embedding, factor(file, a + ".embedding_scale"));
  TALLY_TRY(spec.scale.residual, factor(file, a + ".residual_scale"));
  TALLY_TRY(spec.scale.logits, factor(file, a + ".logit_scale"));
  return {};
}

// What holds for every architecture once the family has had its say.
Result<void> check_attention(const std::string& a, ModelSpec& spec) {
  AttentionSpec& at = spec.attention;
  for (const auto& [key, dim] :
       {std::pair{".attention.key_length", at.key_dim}, std::pair{".attention.value_length", at.value_dim}}) {
    if (dim < 8 || dim > 512 || dim % 2 != 0)
      return bad(fmt::format("{}{} is {}: even, 8..512", a, key, dim));
  }
  if (at.score_scale == 0)
    at.score_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(at.key_dim)));
  if (at.latent.kv_rank > 0 && spec.layer[0].rope.rotated >= at.key_dim) {
    return bad(fmt::format("{}.rope.dimension_count is {}: below the key length {}", a,
                           spec.layer[0].rope.rotated, at.key_dim));
  }
  for (const LayerSpec& layer : spec.layer) {
    if (layer.hidden == 0 && !layer.moe)
      return bad(a + ".feed_forward_length is 0 for a layer without experts");
    if (layer.rope.kind == RopeKind::kNone) continue;
    if (layer.rope.rotated > at.key_dim || layer.rope.rotated % 2 != 0) {
      return bad(
          fmt::format("{}.rope.dimension_count is {}: even, at most {}", a, layer.rope.rotated, at.key_dim));
    }
  }
  return {};
}

Result<void> read_yarn(const gguf::File& file, const std::string& a, RopeSpec& rope) {
  TALLY_TRY(const float ext, at_least(file, a + ".rope.scaling.yarn_ext_factor", 1, 0));
  TALLY_TRY(const float fast, positive(file, a + ".rope.scaling.yarn_beta_fast", 32));
  TALLY_TRY(const float slow, positive(file, a + ".rope.scaling.yarn_beta_slow", 1));
  TALLY_TRY(const float log_multiplier, at_least(file, a + ".rope.scaling.yarn_log_multiplier", 0, 0));
  TALLY_TRY(const float magnitude, at_least(file, a + ".rope.scaling.yarn_attn_factor", 0, 0));
  rope.ext_factor = ext, rope.beta_fast = fast, rope.beta_slow = slow;
  if (magnitude > 0) rope.magnitude *= double{magnitude};  // in place of what the factor asks for
  if (magnitude > 0 || rope.factor <= 1) return {};
  const double log_factor = std::log(rope.factor);
  rope.magnitude *= (0.1 * log_factor + 1) / (0.1 * double{log_multiplier} * log_factor + 1);
  return {};
}

Result<RopeSpec> read_rope(const gguf::File& file, const std::string& a, const ModelSpec& spec) {
  RopeSpec rope;
  TALLY_TRY(const auto rotated, file.get_uint(a + ".rope.dimension_count", 2, 1u << 16));
  rope.rotated = static_cast<uint32_t>(rotated.value_or(spec.attention.key_dim));
  TALLY_TRY(rope.base, positive(file, a + ".rope.freq_base", 10000.0));
  TALLY_TRY(rope.magnitude, positive(file, a + ".rope.scaling.attn_factor", 1.0));
  TALLY_TRY(const auto original, file.get_uint(a + ".rope.scaling.original_context_length", 1, 1u << 30));
  rope.original_context = static_cast<uint32_t>(original.value_or(spec.context));
  TALLY_TRY(const auto kind, file.get_string(a + ".rope.scaling.type"));
  if (kind && *kind != "none" && *kind != "linear" && *kind != "yarn" && *kind != "longrope") {
    return bad(fmt::format("{}.rope.scaling.type is {}: none, linear, yarn and longrope are supported", a,
                           base::escape_for_log(*kind, 64)));
  }
  if (kind && (*kind == "none" || *kind == "longrope")) return rope;
  for (const char* key : {".rope.scaling.factor", ".rope.scale_linear"}) {
    TALLY_TRY(const float factor, at_least(file, a + key, 0, 0));
    if (factor > 0) {
      rope.factor = double{factor};
      break;
    }
  }
  if (kind && *kind == "yarn") TALLY_TRY_VOID(read_yarn(file, a, rope));
  return rope;
}

Result<void> read_eps(const gguf::File& file, const std::string& a, NormSpec& norm) {
  const std::string key = a + (norm.kind == NormKind::kRms ? ".attention.layer_norm_rms_epsilon"
                                                           : ".attention.layer_norm_epsilon");
  TALLY_TRY(const double eps, file.require_float(key));
  if (!(static_cast<float>(eps) > 0 && eps < 1))
    return bad(fmt::format("{} is {}: between 0 and 1", key, eps));
  norm.eps = static_cast<float>(eps);
  return {};
}

Result<void> read_experts(const gguf::File& file, const std::string& a, ModelSpec& spec) {
  MoeSpec& moe = spec.moe;
  TALLY_TRY(const auto experts, file.get_uint(a + ".expert_count", 0, kernels::kExpertsMax));
  moe.experts = static_cast<uint32_t>(experts.value_or(0));
  if (moe.experts == 0) return {};
  TALLY_TRY(moe.used, same_for_all(file, a + ".expert_used_count", 0, moe.experts));
  if (moe.used == 0) return bad(a + ".expert_used_count is missing or 0");
  const auto size = [&](const char* key, uint32_t fallback, uint64_t max) -> Result<uint32_t> {
    TALLY_TRY(const auto value, file.get_uint(a + key, 0, max));
    return static_cast<uint32_t>(value.value_or(fallback));
  };
  if (moe.hidden == 0) moe.hidden = spec.layer[0].hidden;
  TALLY_TRY(moe.hidden, same_for_all(file, a + ".expert_feed_forward_length", moe.hidden, 1u << 24));
  if (moe.hidden == 0) return bad(a + ".expert_feed_forward_length is missing");
  TALLY_TRY(const uint32_t shared, size(".expert_shared_count", 0, 64));
  if (moe.shared_hidden == 0) moe.shared_hidden = shared * moe.hidden;
  TALLY_TRY(moe.shared_hidden, size(".expert_shared_feed_forward_length", moe.shared_hidden, 1u << 24));
  TALLY_TRY(const uint32_t dense, size(".leading_dense_block_count", 0, 1024));
  TALLY_TRY(moe.groups, size(".expert_group_count", 0, moe.experts));
  TALLY_TRY(moe.groups_used, size(".expert_group_used_count", moe.groups, moe.experts));
  if (moe.groups == 1) moe.groups = 0;
  if (moe.groups > 0 &&
      (moe.experts % moe.groups != 0 || moe.groups_used < 1 || moe.groups_used > moe.groups ||
       moe.used > moe.groups_used * (moe.experts / moe.groups))) {
    return bad(fmt::format(
        "{0}.expert_group_count {1} and {0}.expert_group_used_count {2} do not fit {0}.expert_count {3} "
        "and {0}.expert_used_count {4}",
        a, moe.groups, moe.groups_used, moe.experts, moe.used));
  }
  TALLY_TRY(const uint32_t gating, size(".expert_gating_func", 0, 3));
  if (gating != 0) moe.gating = static_cast<kernels::Gating>(gating - 1);
  TALLY_TRY(const auto normalize, file.get_bool(a + ".expert_weights_norm"));
  moe.normalize = normalize.value_or(moe.normalize);
  TALLY_TRY(const float scale, at_least(file, a + ".expert_weights_scale", 0, 0));
  if (scale > 0) moe.scale = scale;
  for (size_t i = 0; i < spec.layer.size(); ++i) spec.layer[i].moe = i >= dense;
  return {};
}

}  // namespace

std::span<const Arch> arch_list() { return kArchitectures; }

std::vector<std::string_view> architectures() {
  std::vector<std::string_view> names;
  for (const Arch& arch : kArchitectures) names.push_back(arch.name);
  return names;
}

bool has_ffn_norm(const gguf::File& file) { return file.find_tensor("blk.0.ffn_norm.weight") != nullptr; }

Result<std::vector<bool>> read_windows(const gguf::File& file, ModelSpec& spec,
                                       const WindowDefaults& defaults) {
  const std::string key = spec.architecture + ".attention.sliding_window";
  std::vector<bool> slides(spec.layers);
  TALLY_TRY(const auto given_window, file.get_uint(key, 0, UINT32_MAX));
  TALLY_TRY(const float rope_base,
            positive(file, spec.architecture + ".rope.freq_base_swa", defaults.rope_base));
  const auto window = static_cast<uint32_t>(given_window.value_or(defaults.window));
  if (window == 0) return slides;
  const gguf::Value* pattern = file.find(key + "_pattern");
  if (pattern != nullptr && std::holds_alternative<gguf::Array>(pattern->data)) {
    TALLY_TRY(const std::vector<uint64_t> flags, file.get_uints(key + "_pattern", spec.layers, 0, 1));
    for (size_t i = 0; i < slides.size(); ++i) slides[i] = flags[i] != 0;
  } else {
    TALLY_TRY(const auto given, file.get_uint(key + "_pattern", 0, 1024));
    const uint64_t period = given.value_or(defaults.period);
    for (size_t i = 0; i < slides.size(); ++i) slides[i] = period == 0 || i % period != period - 1;
  }
  for (size_t i = 0; i < slides.size(); ++i) {
    if (!slides[i]) continue;
    spec.layer[i].window = window;
    if (rope_base > 0) spec.layer[i].rope.base = double{rope_base};
  }
  return slides;
}

void set_rope(ModelSpec& spec, RopeKind kind) {
  for (LayerSpec& layer : spec.layer) layer.rope.kind = kind;
}

void unscale_rope(RopeSpec& rope) { rope.factor = 1, rope.magnitude = 1, rope.ext_factor = 0; }

void scale_scores_by_width(ModelSpec& spec) {
  const double width = static_cast<double>(spec.embedding) / spec.attention.heads;
  spec.attention.score_scale = static_cast<float>(1.0 / std::sqrt(width));
}

Result<ModelSpec> read_spec(const gguf::File& file) {
  TALLY_TRY(const std::string_view name, file.require_string("general.architecture"));
  TALLY_TRY(const auto type, file.get_string("general.type"));
  if (type && *type != "model") {
    return bad(
        fmt::format("general.type is {}: only a model can be loaded", base::escape_for_log(*type, 64)));
  }
  const Arch* arch = nullptr;
  std::string known;
  for (const Arch& row : kArchitectures) {
    if (row.name == name) arch = &row;
    known += (known.empty() ? "" : ", ") + std::string(row.name);
  }
  if (arch == nullptr) {
    return bad(
        fmt::format("general.architecture is {}: supported are {}", base::escape_for_log(name, 64), known));
  }
  const std::string a(name);
  ModelSpec spec;
  spec.architecture = a;
  TALLY_TRY(const auto title, file.get_string("general.name"));
  spec.name = base::escape_for_log(title.value_or(""));
  TALLY_TRY_VOID(read_sizes(file, a, spec));
  TALLY_TRY_VOID(read_attention(file, a, spec));
  TALLY_TRY(const RopeSpec rope, read_rope(file, a, spec));
  for (LayerSpec& layer : spec.layer) layer.rope = rope;
  TALLY_TRY_VOID(arch->read(file, spec));
  TALLY_TRY_VOID(read_experts(file, a, spec));
  TALLY_TRY_VOID(read_eps(file, a, spec.norm));
  TALLY_TRY_VOID(check_attention(a, spec));
  TALLY_TRY_VOID(refuse_unsupported(file, a, spec));
  return spec;
}

}  // namespace tally::model
