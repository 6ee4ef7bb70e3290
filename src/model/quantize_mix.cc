#include "model/quantize_mix.h"

#include "base/settings.h"
#include "model/quantize.h"

#include <algorithm>
#include <optional>

namespace tally::model {
namespace {

using tensor::DType;
using Mix = QuantizeType::Mix;

bool has(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

// The N of "blk.N.".
std::optional<uint32_t> layer_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  const auto layer = base::parse_uint(name.substr(0, name.find('.')));
  if (!layer || *layer > UINT16_MAX) return std::nullopt;
  return static_cast<uint32_t>(*layer);
}

// The first and last eighth of the layers, and every third between.
bool is_worth_more(uint32_t layer, uint32_t layers) {
  return layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
}

constexpr uint64_t kMixtureOfEight = 8;  // their attention is a small share of the file

DType value_type(const QuantizeType& wanted, uint32_t layer, const MixContext& context) {
  if (context.experts == kMixtureOfEight) return DType::kQ8_0;
  if (wanted.mix == Mix::kMedium && is_worth_more(layer, context.layers)) return DType::kQ6_K;
  constexpr uint32_t kFirst = 4;
  if (wanted.mix == Mix::kSmall && wanted.weight == DType::kQ4_K && layer < kFirst) return DType::kQ5_K;
  if (context.shared_values && wanted.weight == DType::kQ4_K) return DType::kQ5_K;
  return wanted.weight;
}

DType down_type(const QuantizeType& wanted, uint32_t layer, const MixContext& context) {
  if (wanted.mix == Mix::kMedium && is_worth_more(layer, context.layers)) return DType::kQ6_K;
  if (wanted.mix == Mix::kSmall && wanted.weight == DType::kQ4_K && layer < context.layers / 8)
    return DType::kQ5_K;
  return wanted.weight;
}

// Before the shape has its say.
DType preferred_type(const QuantizeType& wanted, const gguf::TensorInfo& tensor, const MixContext& context) {
  const std::string_view name = tensor.name;
  if (name == "output.weight" || (context.tied_output && name == "token_embd.weight")) {
    const bool fits = tensor.shape.dim[0] % tensor::dtype_info(wanted.weight).block_elements == 0;
    return fits && wanted.weight != DType::kQ8_0 ? DType::kQ6_K : DType::kQ8_0;
  }
  const uint32_t layer = layer_of(name).value_or(0);
  const bool mixes = wanted.mix != Mix::kPlain;
  if (has(name, "attn_v.weight")) return value_type(wanted, layer, context);
  if (has(name, "attn_k.weight") && context.experts == kMixtureOfEight) return DType::kQ8_0;
  if (has(name, "ffn_down")) return down_type(wanted, layer, context);
  if (has(name, "attn_output.weight") && mixes && context.experts == kMixtureOfEight) return DType::kQ5_K;
  if (has(name, "attn_qkv.weight") && wanted.mix == Mix::kMedium)
    return wanted.weight == DType::kQ4_K ? DType::kQ5_K : DType::kQ6_K;
  return wanted.weight;
}

DType fallback(DType type) {
  switch (type) {
    case DType::kQ4_K:
      return DType::kQ5_0;
    case DType::kQ5_K:
      return DType::kQ5_1;
    case DType::kQ6_K:
      return DType::kQ8_0;
    default:
      return DType::kF16;
  }
}

}  // namespace

MixContext mix_context(std::span<const gguf::TensorInfo> tensors) {
  MixContext context;
  context.tied_output = true;
  uint64_t query_rows = 0, value_rows = 0;
  for (const gguf::TensorInfo& tensor : tensors) {
    if (const auto layer = layer_of(tensor.name)) context.layers = std::max(context.layers, *layer + 1);
    if (tensor.name == "output.weight") context.tied_output = false;
    if (has(tensor.name, "_exps.weight")) context.experts = std::max(context.experts, tensor.shape.dim[2]);
    if (has(tensor.name, "attn_q.weight")) query_rows = std::max(query_rows, tensor.shape.dim[1]);
    if (has(tensor.name, "attn_v.weight")) value_rows = std::max(value_rows, tensor.shape.dim[1]);
  }
  constexpr uint32_t kLayersOf70B = 80;
  context.shared_values = context.layers == kLayersOf70B && value_rows > 0 && value_rows < query_rows;
  return context;
}

bool stays_float(const gguf::TensorInfo& tensor) {
  constexpr std::string_view kSmall[] = {"_norm.weight",       "ffn_gate_inp",     "position_embd.weight",
                                         "token_types.weight", "ssm_conv1d",       "shortconv",
                                         "time_mix_",          "attn_rel_b.weight"};
  if (tensor.shape.rank < 2 || !tensor.name.ends_with("weight")) return true;
  return std::any_of(std::begin(kSmall), std::end(kSmall),
                     [&](std::string_view part) { return has(tensor.name, part); });
}

DType mixed_type(const QuantizeType& wanted, const gguf::TensorInfo& tensor, const MixContext& context) {
  const bool quantized = tensor::dtype_info(wanted.weight).block_elements > 1;
  DType type = quantized ? preferred_type(wanted, tensor, context) : wanted.weight;
  while (tensor.shape.dim[0] % tensor::dtype_info(type).block_elements != 0) type = fallback(type);
  return type;
}

}  // namespace tally::model
