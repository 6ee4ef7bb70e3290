#include "model/weight_table.h"

#include <algorithm>

namespace tally::model {
namespace {

// ---- Sizes, by spec and layer
// ----------------------------------------------------------------------------------

uint64_t embedding(const ModelSpec& s, uint32_t) { return s.embedding; }
uint64_t vocab(const ModelSpec& s, uint32_t) { return s.vocab; }
uint64_t context(const ModelSpec& s, uint32_t) { return s.context; }
uint64_t heads(const ModelSpec& s, uint32_t l) { return s.layer[l].heads; }
uint64_t q_rows(const ModelSpec& s, uint32_t l) { return uint64_t{s.layer[l].heads} * s.attention.key_dim; }
uint64_t k_rows(const ModelSpec& s, uint32_t l) {
  return uint64_t{s.layer[l].kv_heads} * s.attention.key_dim;
}
uint64_t v_rows(const ModelSpec& s, uint32_t l) {
  return uint64_t{s.layer[l].kv_heads} * s.attention.value_dim;
}
uint64_t o_columns(const ModelSpec& s, uint32_t l) {
  return uint64_t{s.layer[l].heads} * s.attention.value_dim;
}
uint64_t hidden(const ModelSpec& s, uint32_t l) { return s.layer[l].hidden; }
uint64_t experts(const ModelSpec& s, uint32_t) { return s.moe.experts; }
uint64_t expert_hidden(const ModelSpec& s, uint32_t) { return s.moe.hidden; }
uint64_t shared_hidden(const ModelSpec& s, uint32_t) { return s.moe.shared_hidden; }
uint64_t rope_pairs(const ModelSpec& s, uint32_t) { return s.layer[0].rope.rotated / 2; }
uint64_t q_rank(const ModelSpec& s, uint32_t) { return s.attention.latent.q_rank; }
uint64_t kv_rank(const ModelSpec& s, uint32_t) { return s.attention.latent.kv_rank; }
uint64_t rotated(const ModelSpec& s, uint32_t l) { return s.layer[l].rope.rotated; }
uint64_t latent_rows(const ModelSpec& s, uint32_t l) { return kv_rank(s, l) + rotated(s, l); }
uint64_t unrotated(const ModelSpec& s, uint32_t l) { return s.attention.key_dim - rotated(s, l); }
uint64_t latent_k_rows(const ModelSpec& s, uint32_t l) { return heads(s, l) * unrotated(s, l); }
uint64_t one(const ModelSpec&, uint32_t) { return 1; }

// ---- When a name may or must be there
// --------------------------------------------------------------------------

constexpr Need must_if(bool condition) { return condition ? Need::kMust : Need::kNo; }
constexpr Need may_if(bool condition) { return condition ? Need::kMay : Need::kNo; }

Need always(const ModelSpec&, uint32_t) { return Need::kMust; }
Need optional(const ModelSpec&, uint32_t) { return Need::kMay; }  // its presence switches the feature on
Need untied(const ModelSpec& s, uint32_t) { return must_if(!s.tied_output); }
Need tied(const ModelSpec& s, uint32_t) { return may_if(s.tied_output); }
Need with_norms(const ModelSpec& s, uint32_t) { return must_if(s.norm.weights); }
Need with_embedding_norm(const ModelSpec& s, uint32_t) { return must_if(s.norm.embedding); }
Need with_positions(const ModelSpec& s, uint32_t) { return must_if(s.learned_positions); }
Need pre_norm(const ModelSpec& s, uint32_t) { return must_if(s.norm.pre && s.norm.weights); }
Need second_norm(const ModelSpec& s, uint32_t) { return may_if(s.norm.pre && s.norm.weights); }
Need parallel_norm(const ModelSpec& s, uint32_t) {
  return may_if(s.norm.pre && s.norm.weights && s.parallel);
}
Need post_norm(const ModelSpec& s, uint32_t) { return must_if(s.norm.post); }
Need ffn_norm(const ModelSpec& s, uint32_t) {
  if (!s.norm.pre || !s.norm.weights) return Need::kNo;
  return s.parallel ? Need::kMay : Need::kMust;  // branches side by side may share one norm
}
bool is_latent(const ModelSpec& s) { return s.attention.latent.kv_rank > 0; }
Need plain(const ModelSpec& s, uint32_t) { return must_if(!is_latent(s)); }
Need plain_fused(const ModelSpec& s, uint32_t) { return may_if(!is_latent(s)); }
Need latent(const ModelSpec& s, uint32_t) { return must_if(is_latent(s)); }
Need latent_fused(const ModelSpec& s, uint32_t) { return may_if(is_latent(s)); }
Need latent_q_full(const ModelSpec& s, uint32_t) {
  return must_if(is_latent(s) && s.attention.latent.q_rank == 0);
}
Need latent_q_low(const ModelSpec& s, uint32_t) {
  return must_if(is_latent(s) && s.attention.latent.q_rank > 0);
}
Need dense(const ModelSpec& s, uint32_t l) { return must_if(!s.layer[l].moe); }
Need gated(const ModelSpec& s, uint32_t l) { return must_if(!s.layer[l].moe && s.ffn.gated); }
Need gated_fused(const ModelSpec& s, uint32_t l) { return may_if(!s.layer[l].moe && s.ffn.gated); }
Need moe(const ModelSpec& s, uint32_t l) { return must_if(s.layer[l].moe); }
Need moe_gated(const ModelSpec& s, uint32_t l) { return must_if(s.layer[l].moe && s.ffn.gated); }
Need moe_gated_fused(const ModelSpec& s, uint32_t l) { return may_if(s.layer[l].moe && s.ffn.gated); }
Need moe_selection(const ModelSpec& s, uint32_t l) { return may_if(s.layer[l].moe); }
Need shared(const ModelSpec& s, uint32_t l) { return must_if(s.layer[l].moe && s.moe.shared_hidden > 0); }
Need shared_gated(const ModelSpec& s, uint32_t l) {
  return must_if(shared(s, l) == Need::kMust && s.ffn.gated);
}
Need shared_scale(const ModelSpec& s, uint32_t l) { return may_if(shared(s, l) == Need::kMust); }

// ---- The table
// -------------------------------------------------------------------------------------------------

constexpr WeightRow kTable[] = {
    {Slot::kTokenEmbd, "token_embd", embedding, vocab, always},
    {Slot::kTokenEmbd, "output", embedding, vocab, tied},  // for the bias: a head may have one of its own
    {Slot::kTokenNorm, "token_embd_norm", embedding, one, with_embedding_norm, Part::kVector},
    {Slot::kPositionEmbd, "position_embd", embedding, context, with_positions},
    {Slot::kOutput, "output", embedding, vocab, untied},
    {Slot::kOutputNorm, "output_norm", embedding, one, with_norms, Part::kVector},
    {Slot::kRopeFreqs, "rope_freqs", rope_pairs, one, optional, Part::kVector},
    {Slot::kRopeFreqs, "blk.0.rope_freqs", rope_pairs, one, optional, Part::kVector},
    {Slot::kRopeLong, "rope_factors_long", rope_pairs, one, optional, Part::kVector},
    {Slot::kRopeShort, "rope_factors_short", rope_pairs, one, optional, Part::kVector},
    {Slot::kAttnNorm, "blk.{}.attn_norm_2", embedding, one, parallel_norm, Part::kVector},
    {Slot::kAttnNorm, "blk.{}.attn_norm", embedding, one, pre_norm, Part::kVector},
    {Slot::kAttnQ, "blk.{}.attn_q", embedding, q_rows, plain},
    {Slot::kAttnK, "blk.{}.attn_k", embedding, k_rows, plain},
    {Slot::kAttnV, "blk.{}.attn_v", embedding, v_rows, plain},
    {Slot::kAttnQ, "blk.{}.attn_qkv", embedding, q_rows, plain_fused, Part::kQ},
    {Slot::kAttnK, "blk.{}.attn_qkv", embedding, k_rows, plain_fused, Part::kK},
    {Slot::kAttnV, "blk.{}.attn_qkv", embedding, v_rows, plain_fused, Part::kV},
    {Slot::kAttnQDown, "blk.{}.attn_q_a", embedding, q_rank, latent_q_low},
    {Slot::kAttnQDownNorm, "blk.{}.attn_q_a_norm", q_rank, one, latent_q_low, Part::kVector},
    {Slot::kAttnQ, "blk.{}.attn_q_b", q_rank, q_rows, latent_q_low},
    {Slot::kAttnQ, "blk.{}.attn_q", embedding, q_rows, latent_q_full},
    {Slot::kAttnKvDown, "blk.{}.attn_kv_a_mqa", embedding, latent_rows, latent},
    {Slot::kAttnKvDownNorm, "blk.{}.attn_kv_a_norm", kv_rank, one, latent, Part::kVector},
    {Slot::kAttnK, "blk.{}.attn_k_b", kv_rank, latent_k_rows, latent, Part::kKTransposed},
    {Slot::kAttnV, "blk.{}.attn_v_b", kv_rank, v_rows, latent, Part::kVOfHeads},
    {Slot::kAttnK, "blk.{}.attn_kv_b", kv_rank, latent_k_rows, latent_fused, Part::kKOfKv},
    {Slot::kAttnV, "blk.{}.attn_kv_b", kv_rank, v_rows, latent_fused, Part::kVOfKv},
    {Slot::kAttnOut, "blk.{}.attn_output", o_columns, embedding, always},
    {Slot::kAttnQNorm, "blk.{}.attn_q_norm", q_rows, one, optional, Part::kHeadNorm},
    {Slot::kAttnKNorm, "blk.{}.attn_k_norm", k_rows, one, optional, Part::kHeadNorm},
    {Slot::kAttnSinks, "blk.{}.attn_sinks", heads, one, optional, Part::kVector},
    {Slot::kPostAttnNorm, "blk.{}.post_attention_norm", embedding, one, post_norm, Part::kVector},
    {Slot::kFfnNorm, "blk.{}.ffn_norm", embedding, one, ffn_norm, Part::kVector},
    {Slot::kFfnNorm, "blk.{}.attn_norm", embedding, one, parallel_norm, Part::kVector},
    {Slot::kFfnNorm, "blk.{}.post_attention_norm", embedding, one, second_norm, Part::kVector},
    {Slot::kFfnGate, "blk.{}.ffn_gate", embedding, hidden, gated},
    {Slot::kFfnGate, "blk.{}.ffn_up", embedding, hidden, gated_fused, Part::kGate},
    {Slot::kFfnUp, "blk.{}.ffn_up", embedding, hidden, gated_fused, Part::kUp},
    {Slot::kFfnUp, "blk.{}.ffn_up", embedding, hidden, dense},
    {Slot::kFfnDown, "blk.{}.ffn_down", hidden, embedding, dense},
    {Slot::kPostFfnNorm, "blk.{}.post_ffw_norm", embedding, one, post_norm, Part::kVector},
    {Slot::kRouter, "blk.{}.ffn_gate_inp", embedding, experts, moe},
    {Slot::kRouterSelection, "blk.{}.exp_probs_b.bias", experts, one, moe_selection, Part::kVector},
    {Slot::kExpertGate, "blk.{}.ffn_gate_exps", embedding, expert_hidden, moe_gated, Part::kExperts},
    {Slot::kExpertUp, "blk.{}.ffn_up_exps", embedding, expert_hidden, moe, Part::kExperts},
    {Slot::kExpertGate, "blk.{}.ffn_gate_up_exps", embedding, expert_hidden, moe_gated_fused,
     Part::kGateOfExperts},
    {Slot::kExpertUp, "blk.{}.ffn_gate_up_exps", embedding, expert_hidden, moe_gated_fused,
     Part::kUpOfExperts},
    {Slot::kExpertDown, "blk.{}.ffn_down_exps", expert_hidden, embedding, moe, Part::kExperts},
    {Slot::kSharedGate, "blk.{}.ffn_gate_shexp", embedding, shared_hidden, shared_gated},
    {Slot::kSharedUp, "blk.{}.ffn_up_shexp", embedding, shared_hidden, shared},
    {Slot::kSharedDown, "blk.{}.ffn_down_shexp", shared_hidden, embedding, shared},
    {Slot::kSharedScale, "blk.{}.ffn_gate_inp_shexp", embedding, one, shared_scale},
};

// Tensors that files carry and no forward pass reads.
constexpr std::string_view kIgnorable[] = {"rope_freqs.weight", "attn_rot_embd", ".nextn."};

}  // namespace

std::span<const WeightRow> weight_table() { return kTable; }

WeightPlace place_of(const WeightRow& row, const ModelSpec& s, uint32_t l) {
  const uint64_t columns = row.columns(s, l), rows = row.rows(s, l), q = q_rows(s, l), k = k_rows(s, l),
                 v = v_rows(s, l);
  const uint64_t n = unrotated(s, l), dv = s.attention.value_dim;
  switch (row.part) {
    case Part::kWhole:
    case Part::kVector:
    case Part::kHeadNorm:
      break;
    case Part::kExperts:
      return {{columns, rows, s.moe.experts}, {}};
    case Part::kGateOfExperts:
      return {{columns, 2 * rows, s.moe.experts}, {.first = 0, .run = rows, .period = 2 * rows}};
    case Part::kUpOfExperts:
      return {{columns, 2 * rows, s.moe.experts}, {.first = rows, .run = rows, .period = 2 * rows}};
    case Part::kQ:
      return {{columns, q + k + v, 1}, {}};
    case Part::kK:
      return {{columns, q + k + v, 1}, {.first = q}};
    case Part::kV:
      return {{columns, q + k + v, 1}, {.first = q + k}};
    case Part::kGate:
      return {{columns, 2 * rows, 1}, {}};
    case Part::kUp:
      return {{columns, 2 * rows, 1}, {.first = rows}};
    case Part::kKOfKv:
      return {{columns, heads(s, l) * (n + dv), 1}, {.first = 0, .run = n, .period = n + dv}};
    case Part::kVOfKv:
      return {{columns, heads(s, l) * (n + dv), 1}, {.first = n, .run = dv, .period = n + dv}};
    case Part::kKTransposed:
      return {{n, columns, heads(s, l)}, {}};
    case Part::kVOfHeads:
      return {{columns, dv, heads(s, l)}, {}};
  }
  return {{columns, rows, 1}, {}};
}

bool is_ignorable(std::string_view tensor) {
  return std::any_of(std::begin(kIgnorable), std::end(kIgnorable),
                     [&](std::string_view s) { return tensor.find(s) != std::string_view::npos; });
}

}  // namespace tally::model
