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
    {"gemma3", read_gemma3},
    {"llama", read_llama},
};

Error bad(std::string message) { return Error{ErrorCode::kBadData, std::move(message)}; }

Result<float> positive(const gguf::File& file, const std::string& key, double fallback) {
  TALLY_TRY(const auto value, file.get_float(key));
  if (!value) return static_cast<float>(fallback);
  if (!(*value > 0)) return bad(fmt::format("{} is {}: it must be above 0", key, *value));
  return static_cast<float>(*value);
}

// A scalar for every layer, or one value a layer that must all be equal: per-layer head counts are not
// supported yet.
Result<uint32_t> uniform(const gguf::File& file, const std::string& key, uint32_t layers, uint64_t max) {
  TALLY_TRY(const std::vector<uint64_t> values, file.get_uints(key, layers, 1, max));
  if (values.empty()) return 0u;
  for (const uint64_t v : values) {
    if (v != values[0]) return bad(fmt::format("{} differs between layers: not supported yet", key));
  }
  return static_cast<uint32_t>(values[0]);
}

Result<void> read_sizes(const gguf::File& file, const std::string& a, ModelSpec& spec) {
  TALLY_TRY(const uint64_t layers, file.require_uint(a + ".block_count", 1, 1024));
  TALLY_TRY(const uint64_t embedding, file.require_uint(a + ".embedding_length", 1, 1u << 20));
  TALLY_TRY(const uint64_t context, file.require_uint(a + ".context_length", 1, 1u << 30));
  spec.layers = static_cast<uint32_t>(layers);
  spec.embedding = static_cast<uint32_t>(embedding);
  spec.context = static_cast<uint32_t>(context);
  TALLY_TRY(spec.ffn.hidden, uniform(file, a + ".feed_forward_length", spec.layers, 1u << 24));
  if (spec.ffn.hidden == 0) return bad(a + ".feed_forward_length is missing");

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

Result<void> read_attention(const gguf::File& file, const std::string& a, ModelSpec& spec) {
  AttentionSpec& at = spec.attention;
  TALLY_TRY(at.heads, uniform(file, a + ".attention.head_count", spec.layers, 4096));
  if (at.heads == 0) return bad(a + ".attention.head_count is missing");
  TALLY_TRY(at.kv_heads, uniform(file, a + ".attention.head_count_kv", spec.layers, 4096));
  if (at.kv_heads == 0) at.kv_heads = at.heads;
  if (at.heads % at.kv_heads != 0) {
    return bad(fmt::format("{0}.attention.head_count {1} is no multiple of {0}.attention.head_count_kv {2}",
                           a, at.heads, at.kv_heads));
  }
  for (const auto& [key, field] : {std::pair{".attention.key_length", &at.key_dim},
                                   std::pair{".attention.value_length", &at.value_dim}}) {
    TALLY_TRY(const auto given, file.get_uint(a + key, 8, 512));
    const uint64_t dim = given.value_or(spec.embedding / at.heads);
    if (dim < 8 || dim > 512 || dim % 2 != 0)
      return bad(fmt::format("{}{} is {}: even, 8..512", a, key, dim));
    *field = static_cast<uint32_t>(dim);
  }
  TALLY_TRY(at.score_scale,
            positive(file, a + ".attention.scale", 1.0 / std::sqrt(static_cast<double>(at.key_dim))));
  TALLY_TRY(const auto cap, file.get_float(a + ".attn_logit_softcapping"));
  TALLY_TRY(const auto final_cap, file.get_float(a + ".final_logit_softcapping"));
  if (cap.value_or(0) < 0 || final_cap.value_or(0) < 0) return bad(a + ".*_logit_softcapping is negative");
  at.softcap = static_cast<float>(cap.value_or(0));
  spec.final_softcap = static_cast<float>(final_cap.value_or(0));
  return {};
}

Result<RopeSpec> read_rope(const gguf::File& file, const std::string& a, const AttentionSpec& attention) {
  RopeSpec rope;
  TALLY_TRY(const auto rotated, file.get_uint(a + ".rope.dimension_count", 2, attention.key_dim));
  rope.rotated = static_cast<uint32_t>(rotated.value_or(attention.key_dim));
  if (rope.rotated % 2 != 0)
    return bad(fmt::format("{}.rope.dimension_count is {}: it must be even", a, rope.rotated));
  TALLY_TRY(const float freq_base, positive(file, a + ".rope.freq_base", 10000.0));
  rope.base = freq_base;
  TALLY_TRY(const auto kind, file.get_string(a + ".rope.scaling.type"));
  if (kind && *kind != "none" && *kind != "linear") {
    return bad(fmt::format("{}.rope.scaling.type is {}: none and linear are supported", a,
                           base::escape_for_log(*kind, 64)));
  }
  if (kind && *kind == "none") return rope;
  for (const char* key : {".rope.scaling.factor", ".rope.scale_linear"}) {
    TALLY_TRY(const auto factor, file.get_float(a + key));
    if (factor && *factor < 0)
      return bad(fmt::format("{}{} is {}: it must not be negative", a, key, *factor));
    if (factor && *factor > 0) {
      rope.factor = *factor;
      break;
    }
  }
  return rope;
}

}  // namespace

std::span<const Arch> arch_list() { return kArchitectures; }

std::vector<std::string_view> architectures() {
  std::vector<std::string_view> names;
  for (const Arch& arch : kArchitectures) names.push_back(arch.name);
  return names;
}

Result<std::vector<bool>> read_window_pattern(const gguf::File& file, const std::string& key,
                                              const ModelSpec& spec, uint64_t default_period) {
  std::vector<bool> slides(spec.layers);
  uint64_t period = default_period;
  const gguf::Value* value = file.find(key);
  if (value != nullptr && std::holds_alternative<gguf::Array>(value->data)) {
    TALLY_TRY(const std::vector<uint64_t> flags, file.get_uints(key, spec.layers, 0, 1));
    for (size_t i = 0; i < slides.size(); ++i) slides[i] = flags[i] != 0;
    return slides;
  }
  TALLY_TRY(const auto given, file.get_uint(key, 0, 1024));
  period = given.value_or(default_period);
  for (size_t i = 0; i < slides.size(); ++i) slides[i] = period > 0 && i % period != period - 1;
  return slides;
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
  TALLY_TRY(const double eps, file.require_float(a + ".attention.layer_norm_rms_epsilon"));
  if (!(eps > 0 && eps < 1))
    return bad(fmt::format("{}.attention.layer_norm_rms_epsilon is {}: between 0 and 1", a, eps));
  spec.norm.eps = static_cast<float>(eps);
  TALLY_TRY(const RopeSpec rope, read_rope(file, a, spec.attention));
  spec.layer.assign(spec.layers, LayerSpec{0, rope});
  TALLY_TRY_VOID(arch->read(file, spec));
  return spec;
}

}  // namespace tally::model
