// A ModelSpec in sentences that a person understands.
#include "inspect.h"

#include <fmt/format.h>

#include <algorithm>

namespace tally::apps {
namespace {

using model::Activation;
using model::LayerSpec;
using model::ModelSpec;
using model::RopeKind;
using model::RopeSpec;

bool has_tensor(const gguf::File& file, std::string_view ending) {
  return std::any_of(file.tensors().begin(), file.tensors().end(),
                     [&](const gguf::TensorInfo& t) { return t.name.ends_with(ending); });
}

std::string heads_words(uint32_t heads, uint32_t kv_heads) {
  if (heads == kv_heads) return fmt::format("multi-head, {} heads", heads);
  if (kv_heads == 1) return fmt::format("multi-query, {} query heads share one KV head", heads);
  return fmt::format("grouped-query {}:1, {} query heads over {} KV heads", heads / kv_heads, heads,
                     kv_heads);
}

std::string attention_words(const gguf::File& file, const ModelSpec& s) {
  const model::AttentionSpec& a = s.attention;
  std::string out = "attention: ";
  if (a.latent.kv_rank > 0) {
    out += fmt::format("latent, K and V expanded from {} values a token{}; {} heads", a.latent.kv_rank,
                       a.latent.q_rank > 0 ? fmt::format(", Q through {}", a.latent.q_rank) : "", a.heads);
  } else {
    out += heads_words(a.heads, a.kv_heads);
  }
  out += a.key_dim == a.value_dim ? fmt::format(" of {}", a.key_dim)
                                  : fmt::format(" of {} (keys) and {} (values)", a.key_dim, a.value_dim);
  out += fmt::format("; scores x {:.6g}", a.score_scale);
  if (a.softcap > 0) out += fmt::format(", soft-capped at {:g}", a.softcap);
  if (a.alibi_bias_max > 0) out += fmt::format(", ALiBi with bias up to {:g}", a.alibi_bias_max);
  if (a.clamp > 0) out += fmt::format("; q, k and v clamped to +-{:g}", a.clamp);
  if (has_tensor(file, ".attn_q_norm.weight")) out += "; q and k are normalised";
  if (has_tensor(file, ".attn_sinks.weight")) out += "; with sinks";
  if (has_tensor(file, ".attn_q.bias") || has_tensor(file, ".attn_qkv.bias"))
    out += "; q, k and v have biases";
  return out;
}

std::string norm_words(const ModelSpec& s) {
  std::string out = fmt::format("norms: {}, eps {:g}",
                                s.norm.kind == model::NormKind::kRms ? "RMSNorm" : "LayerNorm", s.norm.eps);
  if (s.norm.pre && s.norm.post) {
    out += ", before and behind attention and FFN (sandwich)";
  } else {
    out += s.norm.post ? ", behind attention and FFN" : ", before attention and FFN";
  }
  if (!s.norm.weights) out += ", without weights";
  if (s.norm.embedding) out += "; one more on the token's embedding";
  return out;
}

std::string_view activation_word(const model::FfnSpec& ffn) {
  switch (ffn.activation) {
    case Activation::kSilu:
      return ffn.gated ? "SwiGLU (SiLU gate)" : "SiLU";
    case Activation::kGeluTanh:
      return ffn.gated ? "GeGLU (GELU gate, tanh form)" : "GELU (tanh form)";
    case Activation::kGeluErf:
      return ffn.gated ? "GeGLU (GELU gate)" : "GELU";
    case Activation::kRelu2:
      return ffn.gated ? "ReLU squared gate" : "ReLU squared";
    case Activation::kSwigluOai:
      return "clamped SwiGLU";
  }
  return "?";
}

std::string ffn_words(const ModelSpec& s) {
  std::string out = fmt::format("FFN: {}{}", activation_word(s.ffn), s.ffn.gated ? "" : ", no gate");
  if (s.moe.experts == 0) return out;
  constexpr std::string_view kGatings[] = {"softmax over all", "sigmoid each", "softmax over the chosen"};
  out += fmt::format("; {} experts of {}, {} a token ({}{})", s.moe.experts, s.moe.hidden, s.moe.used,
                     kGatings[static_cast<size_t>(s.moe.gating)],
                     s.moe.normalize ? ", weights made to add up to 1" : "");
  if (s.moe.scale != 1) out += fmt::format(", x {:g}", s.moe.scale);
  if (s.moe.groups > 1)
    out += fmt::format(", from {} of {} groups of experts", s.moe.groups_used, s.moe.groups);
  if (s.moe.shared_hidden > 0)
    out += fmt::format("; a shared expert of {} for every token", s.moe.shared_hidden);
  return out;
}

std::string scale_words(const ModelSpec& s) {
  std::string out;
  const auto add = [&](std::string_view what, float value, float none) {
    if (value != none) out += fmt::format("{}{} {:g}", out.empty() ? "scales: " : ", ", what, value);
  };
  add("embedding x", s.scale.embedding, 1);
  add("what joins the residual x", s.scale.residual, 1);
  add("logits x", s.scale.logits, 1);
  add("logits soft-capped at", s.scale.final_softcap, 0);
  return out;
}

std::string rope_words(const RopeSpec& r) {
  if (r.kind == RopeKind::kNone) return "no rope";
  std::string out =
      fmt::format("rope {} over {} values, base {:.10g}",
                  r.kind == RopeKind::kNorm ? "NORM (neighbours)" : "NEOX (halves)", r.rotated, r.base);
  if (r.ext_factor > 0) {
    out += fmt::format(", YaRN x {:g} from {} tokens", r.factor, r.original_context);
  } else if (r.factor != 1) {
    out += fmt::format(", positions / {:g}", r.factor);
  }
  if (r.magnitude != 1) out += fmt::format(", magnitude {:.6g}", r.magnitude);
  return out;
}

std::string layer_words(const ModelSpec& s, const LayerSpec& l) {
  std::string out = l.window == 0 ? "sees everything" : fmt::format("window of {} tokens", l.window);
  out += "; " + rope_words(l.rope);
  out += l.moe ? "; experts" : fmt::format("; FFN of {}", l.hidden);
  if (l.heads != s.attention.heads || l.kv_heads != s.attention.kv_heads)
    out += "; " + heads_words(l.heads, l.kv_heads);
  return out;
}

}  // namespace

std::vector<std::string> spec_words(const gguf::File& file, const ModelSpec& s) {
  std::vector<std::string> out;
  out.push_back(fmt::format("{} layers, embedding {}, vocabulary {}, context {} tokens", s.layers,
                            s.embedding, s.vocab, s.context));
  out.push_back(attention_words(file, s));
  out.push_back(norm_words(s));
  out.push_back(ffn_words(s));
  if (const std::string scales = scale_words(s); !scales.empty()) out.push_back(scales);
  if (s.parallel) out.push_back("block: attention and FFN side by side, both on the block's input");
  if (s.learned_positions) out.push_back("positions: learned, a vector each");
  if (has_tensor(file, "rope_factors_long.weight")) {
    out.push_back(
        fmt::format("rope: one set of divisors for contexts up to {} tokens, one for longer (longrope)",
                    s.layer[0].rope.original_context));
  }
  if (has_tensor(file, "rope_freqs.weight")) out.push_back("rope: each pair has a divisor from rope_freqs");
  out.push_back(s.tied_output ? "output matrix: the token embedding (tied)" : "output matrix: its own");
  return out;
}

std::vector<LayerGroup> layer_groups(const ModelSpec& s) {
  std::vector<LayerGroup> groups;
  for (uint32_t i = 0; i < s.layers; ++i) {
    const std::string words = layer_words(s, s.layer[i]);
    const auto same = std::find_if(groups.begin(), groups.end(),
                                   [&](const LayerGroup& group) { return group.words == words; });
    if (same != groups.end()) {
      same->layers.push_back(i);
    } else {
      groups.push_back({words, {i}});
    }
  }
  return groups;
}

}  // namespace tally::apps
