// Spec -> program: the one graph builder. Optional tensors and spec fields switch features; no architecture
// is named here.
#include "base/check.h"
#include "model/program.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace tally::model {
namespace {

// Slopes of ALiBi: a geometric series for the largest power of two of heads, every other one of a finer
// series for the rest. Source: Press et al. 2022, the authors' code.
std::vector<float> alibi_slopes(uint32_t heads, double bias_max) {
  const uint32_t whole = std::bit_floor(heads);
  std::vector<float> slopes(heads);
  for (uint32_t h = 0; h < heads; ++h) {
    const double exponent =
        h < whole ? bias_max / whole * (h + 1) : bias_max / 2 / whole * (2 * (h - whole) + 1);
    slopes[h] = static_cast<float>(std::exp2(-exponent));
  }
  return slopes;
}

// The stages of a product: whose rows they are, and the linear one.
struct Domain {
  StageKind rows = StageKind::kRows, linear = StageKind::kLinear;
};
constexpr Domain kHeadDomain{StageKind::kHeadRows, StageKind::kHeadLinear};
constexpr Domain kExpertDomain{StageKind::kExpertRows, StageKind::kExpertLinear};

class Builder {
 public:
  Builder(const ModelSpec& spec, const Weights& weights, const std::vector<RopeTable>& ropes, size_t threads)
      : spec_(spec), weights_(weights), ropes_(ropes), threads_(threads) {}

  Program build() {
    const AttentionSpec& at = spec_.attention;
    p_.key_dim = at.key_dim, p_.value_dim = at.value_dim;
    p_.score_scale = at.score_scale, p_.softcap = at.softcap;
    p_.norm = spec_.norm.kind, p_.activation = spec_.ffn.activation, p_.moe = spec_.moe;
    open(StageKind::kRows);
    embed();
    for (uint32_t layer = 0; layer < spec_.layers; ++layer) add_layer(layer);
    head();
    close();
    return std::move(p_);
  }

 private:
  void open(StageKind kind) {
    close();
    p_.stages.push_back({kind, static_cast<uint32_t>(p_.code.size()), 0, {}});
  }
  void close() {
    if (p_.stages.empty()) return;
    Stage& stage = p_.stages.back();
    stage.end = static_cast<uint32_t>(p_.code.size());
    switch (stage.kind) {
      case StageKind::kLinear:
      case StageKind::kHeadLinear:
        return cut_tapering(stage);
      case StageKind::kExpertLinear:
        return cut_evenly(stage, 2);  // several experts are active
      default:
        return;
    }
  }
  void emit(const Instruction& i) {
    p_.code.push_back(i);
    uint32_t& width = p_.width[static_cast<size_t>(i.dst)];
    width = std::max(width, i.n);
  }

  // Chunks that are a share of all groups or of those that are left: size(all, left), 0 counting as 1.
  template <class Size>
  void cut(Stage& stage, Size size) {
    stage.chunks.clear();
    const auto groups = [&](uint32_t i) {
      return (p_.code[i].matrix.rows + static_cast<uint32_t>(kernels::kGroupRows) - 1) /
             static_cast<uint32_t>(kernels::kGroupRows);
    };
    uint32_t all = 0;
    for (uint32_t i = stage.begin; i < stage.end; ++i) all += groups(i);
    uint32_t left = all;
    for (uint32_t i = stage.begin; i < stage.end; ++i) {
      for (uint32_t g = 0; g < groups(i);) {
        const uint32_t end = std::min(groups(i), g + std::max(1u, size(all, left)));
        stage.chunks.push_back({i, g, end});
        left -= end - g, g = end;
      }
    }
  }
  void cut_evenly(Stage& stage, uint32_t per_thread) {
    const uint32_t n = static_cast<uint32_t>(threads_) * per_thread;
    cut(stage, [n](uint32_t all, uint32_t) { return all / n; });
  }
  // Large enough to stream, and towards the end so small that threads end together, whatever a row costs.
  void cut_tapering(Stage& stage) {
    const auto threads = static_cast<uint32_t>(threads_);
    cut(stage, [threads](uint32_t all, uint32_t left) {
      return std::min(all / (8 * threads), left / (2 * threads));
    });
  }

  // Of `n` values; of each of `width` where the vector is for heads.
  void norm(Slot slot, uint32_t layer, Buf src, Buf dst, uint32_t n) {
    Instruction i{.op = Op::kNorm, .src = src, .dst = dst, .layer = layer, .n = n, .width = n};
    i.value = spec_.norm.eps;
    i.vector = weights_.vector(slot, layer), i.bias = weights_.bias(slot, layer);
    if (weights_.has(slot, layer)) {
      i.width = weights_.columns(slot, layer);
      i.vector_step = weights_.rows(slot, layer) > 1 ? i.width : 0;
    }
    emit(i);
  }
  void norm(Slot slot, uint32_t layer, Buf src, Buf dst) { norm(slot, layer, src, dst, spec_.embedding); }
  void norm_if_there(Slot slot, uint32_t layer, Buf buf, uint32_t n) {
    if (weights_.has(slot, layer)) norm(slot, layer, buf, buf, n);
  }

  struct Product {
    Slot slot;
    Buf dst;
  };
  // Makes the panels that the matrices need from `src` (in the open rows stage), then a linear stage, then
  // (in a new rows stage) their biases.
  void linears(uint32_t layer, Buf src, std::initializer_list<Product> products, const Domain& domain = {}) {
    const bool expert = domain.linear == StageKind::kExpertLinear;
    auto& panel_k = expert ? p_.expert_panel_k : p_.panel_k;
    bool made[kernels::kPanelKinds] = {};
    for (const Product& product : products) {
      const Matrix m = weights_.matrix(product.slot, layer);
      TALLY_CHECK(m.format != nullptr, "matrix is not bound", static_cast<int>(product.slot), layer);
      const auto kind = static_cast<size_t>(m.format->panel);
      panel_k[kind] = std::max(panel_k[kind], m.k);
      if (made[kind]) continue;
      made[kind] = true;
      p_.code.push_back({.op = Op::kPanel, .src = src, .layer = layer, .n = m.k, .panel = m.format->panel});
    }
    open(domain.linear);
    p_.stages.back().turn = weights_.turn(products.begin()->slot, layer);  // a layer has one
    for (const Product& product : products) {
      const Matrix m = weights_.matrix(product.slot, layer);
      emit({.op = Op::kLinear, .src = src, .dst = product.dst, .layer = layer, .n = m.rows, .matrix = m});
    }
    open(domain.rows);
    for (const Product& product : products) {
      const float* b = weights_.bias(product.slot, layer);
      if (b == nullptr) continue;
      const uint32_t n = weights_.matrix(product.slot, layer).rows;
      emit({.op = expert ? Op::kExpertBias : Op::kBias,
            .dst = product.dst,
            .layer = layer,
            .n = n,
            .vector = b});
    }
  }

  void rope(uint32_t layer, Buf dst, uint32_t n, uint32_t width, uint32_t offset) {
    const RopeSpec& wanted = spec_.layer[layer].rope;
    if (wanted.kind == RopeKind::kNone) return;
    const auto found =
        std::find_if(ropes_.begin(), ropes_.end(), [&](const RopeTable& t) { return t.spec == wanted; });
    TALLY_CHECK(found != ropes_.end(), "no rope table for layer", layer);
    Instruction i{.op = Op::kRope, .dst = dst, .layer = layer, .n = n, .width = width, .offset = offset};
    i.rope = &*found;
    emit(i);
  }

  void embed() {
    const uint32_t n = spec_.embedding;
    emit({.op = Op::kEmbed, .dst = Buf::kResidual, .n = n});
    if (spec_.scale.embedding != 1)
      emit({.op = Op::kScale, .dst = Buf::kResidual, .n = n, .value = spec_.scale.embedding});
    if (spec_.norm.embedding) norm(Slot::kTokenNorm, 0, Buf::kResidual, Buf::kResidual);
    if (spec_.learned_positions) {
      emit({.op = Op::kEmbedPosition, .dst = Buf::kFfnIn, .n = n});
      add(0, Buf::kFfnIn, Buf::kResidual);
    }
  }

  // Q, K and V of the row, from its normed values.
  void project(uint32_t layer, Buf in) {
    const LayerSpec& l = spec_.layer[layer];
    const AttentionSpec& at = spec_.attention;
    const uint32_t q = l.heads * at.key_dim, k = l.kv_heads * at.key_dim, v = l.kv_heads * at.value_dim;
    if (at.latent.kv_rank > 0) return project_latent(layer, in);
    linears(layer, in, {{Slot::kAttnQ, Buf::kQ}, {Slot::kAttnK, Buf::kK}, {Slot::kAttnV, Buf::kV}});
    norm_if_there(Slot::kAttnQNorm, layer, Buf::kQ, q);
    norm_if_there(Slot::kAttnKNorm, layer, Buf::kK, k);
    if (at.clamp > 0) {  // behind the norms: OLMoE's order, of those that have both
      emit({.op = Op::kClamp, .dst = Buf::kQ, .layer = layer, .n = q, .value = at.clamp});
      emit({.op = Op::kClamp, .dst = Buf::kK, .layer = layer, .n = k, .value = at.clamp});
      emit({.op = Op::kClamp, .dst = Buf::kV, .layer = layer, .n = v, .value = at.clamp});
    }
    rope(layer, Buf::kQ, q, at.key_dim, 0);
    rope(layer, Buf::kK, k, at.key_dim, 0);
  }

  // Heads share the rotated part of K; the rest of it, and V, are products of the latent.
  void project_latent(uint32_t layer, Buf in) {
    const LayerSpec& l = spec_.layer[layer];
    const AttentionSpec& at = spec_.attention;
    const uint32_t rank = at.latent.kv_rank, rotated = l.rope.rotated, unrotated = at.key_dim - rotated;
    if (at.latent.q_rank > 0) {
      linears(layer, in, {{Slot::kAttnQDown, Buf::kQDown}, {Slot::kAttnKvDown, Buf::kLatent}});
      norm(Slot::kAttnQDownNorm, layer, Buf::kQDown, Buf::kQDown, at.latent.q_rank);
      linears(layer, Buf::kQDown, {{Slot::kAttnQ, Buf::kQ}});
    } else {
      linears(layer, in, {{Slot::kAttnQ, Buf::kQ}, {Slot::kAttnKvDown, Buf::kLatent}});
    }
    norm(Slot::kAttnKvDownNorm, layer, Buf::kLatent, Buf::kLatent, rank);
    linears(layer, Buf::kLatent, {{Slot::kAttnK, Buf::kKeyPart}, {Slot::kAttnV, Buf::kV}});
    rope(layer, Buf::kQ, l.heads * at.key_dim, at.key_dim, unrotated);
    rope(layer, Buf::kLatent, rank + rotated, rank + rotated, rank);
    emit({.op = Op::kAssembleKeys,
          .src = Buf::kKeyPart,
          .dst = Buf::kK,
          .layer = layer,
          .n = l.heads * at.key_dim,
          .width = at.key_dim,
          .offset = unrotated});
  }

  void attend(uint32_t layer) {
    const LayerSpec& l = spec_.layer[layer];
    LayerAttention at{l.heads, l.kv_heads, l.window, weights_.vector(Slot::kAttnSinks, layer), {}};
    if (spec_.attention.alibi_bias_max > 0)
      at.alibi = alibi_slopes(l.heads, double{spec_.attention.alibi_bias_max});
    p_.attention.push_back(std::move(at));
    const uint32_t v = l.kv_heads * spec_.attention.value_dim, out = l.heads * spec_.attention.value_dim;
    emit({.op = Op::kStoreKv, .src = Buf::kK, .dst = Buf::kV, .layer = layer, .n = v});
    open(StageKind::kAttend);
    emit({.op = Op::kAttend, .src = Buf::kQ, .dst = Buf::kAttended, .layer = layer, .n = out});
    open(StageKind::kRows);
    linears(layer, Buf::kAttended, {{Slot::kAttnOut, Buf::kBranch}});
  }

  // The branch's output joins the residual, through a post norm where the model has one.
  void join(Slot post_norm, uint32_t layer) {
    if (spec_.norm.post) norm(post_norm, layer, Buf::kBranch, Buf::kBranch);
    add(layer, Buf::kBranch, Buf::kResidual, spec_.scale.residual);
  }
  void add(uint32_t layer, Buf src, Buf dst, float scale = 1) {
    emit({.op = Op::kAdd, .src = src, .dst = dst, .layer = layer, .n = spec_.embedding, .value = scale});
  }

  // act(gate) * up or act(up), in the buffer that is returned.
  Buf activate(uint32_t layer, Buf gate, Buf up, uint32_t n) {
    if (!spec_.ffn.gated) {
      emit({.op = Op::kAct, .dst = up, .layer = layer, .n = n});
      return up;
    }
    emit({.op = Op::kGateAct, .src = up, .dst = gate, .layer = layer, .n = n});
    return gate;
  }

  void ffn(uint32_t layer, Buf in) {
    if (spec_.layer[layer].moe) return experts(layer, in);
    if (spec_.ffn.gated)
      linears(layer, in, {{Slot::kFfnGate, Buf::kGate}, {Slot::kFfnUp, Buf::kUp}});
    else
      linears(layer, in, {{Slot::kFfnUp, Buf::kUp}});
    const Buf act = activate(layer, Buf::kGate, Buf::kUp, spec_.layer[layer].hidden);
    linears(layer, act, {{Slot::kFfnDown, Buf::kBranch}});
  }

  void experts(uint32_t layer, Buf in) {
    if (spec_.moe.shared_hidden > 0) shared_expert(layer, in);
    linears(layer, in, {{Slot::kRouter, Buf::kRouter}});
    p_.code.push_back({.op = Op::kRoute,
                       .src = Buf::kRouter,
                       .layer = layer,
                       .vector = weights_.vector(Slot::kRouterSelection, layer)});
    open(StageKind::kExpertRows);
    emit({.op = Op::kExpertGather, .src = in, .dst = Buf::kExpertIn, .layer = layer, .n = spec_.embedding});
    if (spec_.ffn.gated) {
      linears(layer, Buf::kExpertIn,
              {{Slot::kExpertGate, Buf::kExpertGate}, {Slot::kExpertUp, Buf::kExpertUp}}, kExpertDomain);
    } else {
      linears(layer, Buf::kExpertIn, {{Slot::kExpertUp, Buf::kExpertUp}}, kExpertDomain);
    }
    const Buf act = activate(layer, Buf::kExpertGate, Buf::kExpertUp, spec_.moe.hidden);
    linears(layer, act, {{Slot::kExpertDown, Buf::kExpertOut}}, kExpertDomain);
    open(StageKind::kRows);
    emit({.op = Op::kExpertSum,
          .src = Buf::kExpertOut,
          .dst = Buf::kBranch,
          .layer = layer,
          .n = spec_.embedding});
    if (spec_.moe.shared_hidden > 0) add(layer, Buf::kShared, Buf::kBranch);
  }

  // The expert that every row uses, perhaps weighed by a number of its own.
  void shared_expert(uint32_t layer, Buf in) {
    const bool scaled = weights_.has(Slot::kSharedScale, layer);
    if (scaled) linears(layer, in, {{Slot::kSharedScale, Buf::kSharedScale}});
    if (spec_.ffn.gated)
      linears(layer, in, {{Slot::kSharedGate, Buf::kGate}, {Slot::kSharedUp, Buf::kUp}});
    else
      linears(layer, in, {{Slot::kSharedUp, Buf::kUp}});
    const Buf act = activate(layer, Buf::kGate, Buf::kUp, spec_.moe.shared_hidden);
    linears(layer, act, {{Slot::kSharedDown, Buf::kShared}});
    if (!scaled) return;
    emit({.op = Op::kSigmoidScale,
          .src = Buf::kSharedScale,
          .dst = Buf::kShared,
          .layer = layer,
          .n = spec_.embedding});
  }

  // What a branch reads: the residual, normed where the model norms it.
  Buf branch_input(Slot slot, uint32_t layer, Buf normed) {
    if (!spec_.norm.pre) return Buf::kResidual;
    norm(slot, layer, Buf::kResidual, normed);
    return normed;
  }

  void add_layer(uint32_t layer) {
    const Buf in = branch_input(Slot::kAttnNorm, layer, Buf::kNormed);
    Buf ffn_in = in;
    if (spec_.parallel && weights_.has(Slot::kFfnNorm, layer))
      ffn_in = branch_input(Slot::kFfnNorm, layer, Buf::kFfnIn);
    project(layer, in);
    attend(layer);
    join(Slot::kPostAttnNorm, layer);
    if (!spec_.parallel) ffn_in = branch_input(Slot::kFfnNorm, layer, Buf::kNormed);
    ffn(layer, ffn_in);
    join(Slot::kPostFfnNorm, layer);
  }

  void head() {
    open(StageKind::kHeadRows);
    emit({.op = Op::kGather, .src = Buf::kResidual, .dst = Buf::kHead, .n = spec_.embedding});
    norm(Slot::kOutputNorm, 0, Buf::kHead, Buf::kHead);
    linears(0, Buf::kHead, {{spec_.tied_output ? Slot::kTokenEmbd : Slot::kOutput, Buf::kLogits}},
            kHeadDomain);
    if (spec_.scale.logits != 1)
      emit({.op = Op::kScale, .dst = Buf::kLogits, .n = spec_.vocab, .value = spec_.scale.logits});
    if (spec_.scale.final_softcap > 0)
      emit({.op = Op::kSoftcap, .dst = Buf::kLogits, .n = spec_.vocab, .value = spec_.scale.final_softcap});
  }

  const ModelSpec& spec_;
  const Weights& weights_;
  const std::vector<RopeTable>& ropes_;
  const size_t threads_;
  Program p_;
};

}  // namespace

Program build_program(const ModelSpec& spec, const Weights& weights, const std::vector<RopeTable>& ropes,
                      size_t threads) {
  return Builder(spec, weights, ropes, threads).build();
}

}  // namespace tally::model
