// Spec -> program: the one graph builder. Optional tensors and spec fields switch features; no architecture
// is named here.
#include "base/check.h"
#include "model/program.h"

#include <algorithm>

namespace tally::model {
namespace {

class Builder {
 public:
  Builder(const ModelSpec& spec, const Weights& weights, const std::vector<RopeTable>& ropes, size_t threads)
      : spec_(spec), weights_(weights), ropes_(ropes), threads_(threads) {}

  Program build() {
    const AttentionSpec& at = spec_.attention;
    p_.heads = at.heads, p_.kv_heads = at.kv_heads, p_.key_dim = at.key_dim, p_.value_dim = at.value_dim;
    p_.score_scale = at.score_scale, p_.softcap = at.softcap;
    for (const LayerSpec& layer : spec_.layer) p_.window.push_back(layer.window);
    width(Buf::kResidual, spec_.embedding), width(Buf::kNormed, spec_.embedding),
        width(Buf::kBranch, spec_.embedding);
    width(Buf::kQ, at.heads * at.key_dim), width(Buf::kK, at.kv_heads * at.key_dim);
    width(Buf::kV, at.kv_heads * at.value_dim), width(Buf::kAttended, at.heads * at.value_dim);
    width(Buf::kGate, spec_.ffn.hidden), width(Buf::kUp, spec_.ffn.hidden);
    width(Buf::kHead, spec_.embedding), width(Buf::kLogits, spec_.vocab);

    open(StageKind::kRows);
    emit({.op = Op::kEmbed, .dst = Buf::kResidual});
    if (spec_.embedding_scale != 1)
      emit({.op = Op::kScale, .dst = Buf::kResidual, .value = spec_.embedding_scale});
    for (uint32_t layer = 0; layer < spec_.layers; ++layer) add_layer(layer);
    head();
    close();
    return std::move(p_);
  }

 private:
  void width(Buf b, uint32_t n) { p_.width[static_cast<size_t>(b)] = n; }
  uint32_t width(Buf b) const { return p_.width[static_cast<size_t>(b)]; }

  void open(StageKind kind) {
    close();
    p_.stages.push_back({kind, static_cast<uint32_t>(p_.code.size()), 0, {}});
  }
  void close() {
    if (p_.stages.empty()) return;
    Stage& stage = p_.stages.back();
    stage.end = static_cast<uint32_t>(p_.code.size());
    if (stage.kind == StageKind::kLinear || stage.kind == StageKind::kHeadLinear) cut(stage);
  }
  void emit(Instruction i) { p_.code.push_back(i); }

  // Chunks small enough that threads end together, large enough to stream: about 8 a thread over the whole
  // stage.
  void cut(Stage& stage) {
    stage.chunks.clear();
    uint32_t total = 0;
    const auto groups = [&](uint32_t i) {
      return (p_.code[i].matrix.rows + static_cast<uint32_t>(kernels::kGroupRows) - 1) /
             static_cast<uint32_t>(kernels::kGroupRows);
    };
    for (uint32_t i = stage.begin; i < stage.end; ++i) total += groups(i);
    const uint32_t step = std::max(1u, total / static_cast<uint32_t>(threads_ * 8));
    for (uint32_t i = stage.begin; i < stage.end; ++i) {
      for (uint32_t g = 0; g < groups(i); g += step)
        stage.chunks.push_back({i, g, std::min(groups(i), g + step)});
    }
  }

  void norm(Slot slot, uint32_t layer, Buf src, Buf dst) {
    const float* w = weights_.vector(slot, layer);
    emit({.op = Op::kNorm, .src = src, .dst = dst, .layer = layer, .norm_eps = spec_.norm.eps, .vector = w});
  }

  // Makes the panels that the matrices need from `src` (in the open rows stage), then a linear stage, then
  // (in a new rows stage) their biases.
  struct Product {
    Slot slot;
    Buf dst;
  };
  void linears(uint32_t layer, Buf src, std::initializer_list<Product> products, bool head = false) {
    bool made[kernels::kPanelKinds] = {};
    for (const Product& product : products) {
      const Matrix m = weights_.matrix(product.slot, layer);
      TALLY_CHECK(m.format != nullptr, "matrix is not bound", static_cast<int>(product.slot), layer);
      const auto kind = static_cast<size_t>(m.format->panel);
      p_.panel_k[kind] = std::max(p_.panel_k[kind], m.k);
      if (made[kind]) continue;
      made[kind] = true;
      emit({.op = Op::kPanel, .src = src, .layer = layer, .panel = m.format->panel});
    }
    open(head ? StageKind::kHeadLinear : StageKind::kLinear);
    for (const Product& product : products) {
      emit({.op = Op::kLinear,
            .src = src,
            .dst = product.dst,
            .layer = layer,
            .matrix = weights_.matrix(product.slot, layer)});
    }
    open(head ? StageKind::kHeadRows : StageKind::kRows);
    for (const Product& product : products) {
      if (const float* b = weights_.bias(product.slot, layer)) {
        emit({.op = Op::kBias, .dst = product.dst, .layer = layer, .vector = b});
      }
    }
  }

  void rope(uint32_t layer, Buf dst) {
    const RopeSpec& wanted = spec_.layer[layer].rope;
    if (wanted.kind == RopeKind::kNone) return;
    const auto found =
        std::find_if(ropes_.begin(), ropes_.end(), [&](const RopeTable& t) { return t.spec == wanted; });
    TALLY_CHECK(found != ropes_.end(), "no rope table for layer", layer);
    emit({.op = Op::kRope, .dst = dst, .layer = layer, .width = spec_.attention.key_dim, .rope = &*found});
  }

  void head_norm(Slot slot, uint32_t layer, Buf buf) {
    if (!spec_.attention.qk_norm) return;
    emit({.op = Op::kHeadNorm,
          .src = buf,
          .dst = buf,
          .layer = layer,
          .width = spec_.attention.key_dim,
          .norm_eps = spec_.norm.eps,
          .vector = weights_.vector(slot, layer)});
  }

  // The branch's output joins the residual, through a post norm where the model has one.
  void join(Slot post_norm, uint32_t layer) {
    if (spec_.norm.sandwich) norm(post_norm, layer, Buf::kBranch, Buf::kBranch);
    emit({.op = Op::kAdd, .src = Buf::kBranch, .dst = Buf::kResidual, .layer = layer});
  }

  void add_layer(uint32_t layer) {
    norm(Slot::kAttnNorm, layer, Buf::kResidual, Buf::kNormed);
    linears(layer, Buf::kNormed, {{Slot::kAttnQ, Buf::kQ}, {Slot::kAttnK, Buf::kK}, {Slot::kAttnV, Buf::kV}});
    head_norm(Slot::kAttnQNorm, layer, Buf::kQ);
    head_norm(Slot::kAttnKNorm, layer, Buf::kK);
    rope(layer, Buf::kQ);
    rope(layer, Buf::kK);
    emit({.op = Op::kStoreKv, .src = Buf::kK, .dst = Buf::kV, .layer = layer});
    open(StageKind::kAttend);
    emit({.op = Op::kAttend, .src = Buf::kQ, .dst = Buf::kAttended, .layer = layer});
    open(StageKind::kRows);
    linears(layer, Buf::kAttended, {{Slot::kAttnOut, Buf::kBranch}});
    join(Slot::kPostAttnNorm, layer);

    norm(Slot::kFfnNorm, layer, Buf::kResidual, Buf::kNormed);
    linears(layer, Buf::kNormed, {{Slot::kFfnGate, Buf::kGate}, {Slot::kFfnUp, Buf::kUp}});
    emit({.op = Op::kGateAct,
          .src = Buf::kUp,
          .dst = Buf::kGate,
          .layer = layer,
          .activation = spec_.ffn.activation});
    linears(layer, Buf::kGate, {{Slot::kFfnDown, Buf::kBranch}});
    join(Slot::kPostFfnNorm, layer);
  }

  void head() {
    open(StageKind::kHeadRows);
    emit({.op = Op::kGather, .src = Buf::kResidual, .dst = Buf::kHead});
    norm(Slot::kOutputNorm, 0, Buf::kHead, Buf::kHead);
    linears(0, Buf::kHead, {{spec_.tied_output ? Slot::kTokenEmbd : Slot::kOutput, Buf::kLogits}}, true);
    if (spec_.final_softcap > 0)
      emit({.op = Op::kSoftcap, .dst = Buf::kLogits, .value = spec_.final_softcap});
  }

  const ModelSpec& spec_;
  const Weights& weights_;
  const std::vector<RopeTable>& ropes_;
  const size_t threads_;
  Program p_;
};

// Which buffers an instruction reads and writes.
struct Touch {
  bool reads_src = false, reads_dst = false, writes_dst = false;
};
Touch touch(Op op) {
  switch (op) {
    case Op::kEmbed:
      return {false, false, true};
    case Op::kScale:
    case Op::kBias:
    case Op::kRope:
    case Op::kSoftcap:
      return {false, true, true};
    case Op::kNorm:
    case Op::kHeadNorm:
    case Op::kLinear:
    case Op::kAttend:
    case Op::kGather:
      return {true, false, true};
    case Op::kPanel:
      return {true, false, false};
    case Op::kStoreKv:
      return {true, true, false};
    case Op::kAdd:
    case Op::kGateAct:
      return {true, true, true};
  }
  return {};
}

// live[b][s]: buffer b holds a value that stage s reads, writes or must keep.
std::array<std::vector<bool>, kBufs> liveness(const Program& p) {
  std::array<std::vector<bool>, kBufs> live;
  for (auto& row : live) row.assign(p.stages.size(), false);
  std::array<bool, kBufs> needed{};
  for (size_t s = p.stages.size(); s-- > 0;) {
    for (size_t b = 0; b < kBufs; ++b) live[b][s] = needed[b];
    for (uint32_t i = p.stages[s].end; i-- > p.stages[s].begin;) {
      const Instruction& in = p.code[i];
      const Touch t = touch(in.op);
      const auto src = static_cast<size_t>(in.src), dst = static_cast<size_t>(in.dst);
      // A linear reads the panel, not src: panels have their own place.
      const bool reads_src = t.reads_src && in.op != Op::kLinear;
      if (t.writes_dst) live[dst][s] = true, needed[dst] = t.reads_dst;
      if (t.reads_dst) live[dst][s] = true, needed[dst] = true;
      if (reads_src) live[src][s] = true, needed[src] = true;
    }
  }
  return live;
}

size_t round64(size_t n) { return (n + 63) / 64 * 64; }

}  // namespace

Program build_program(const ModelSpec& spec, const Weights& weights, const std::vector<RopeTable>& ropes,
                      size_t threads) {
  return Builder(spec, weights, ropes, threads).build();
}

ScratchLayout lay_out_scratch(const Program& program, const StepLimits& limits, size_t attend_bytes,
                              size_t threads) {
  ScratchLayout layout;
  std::array<size_t, kBufs> bytes{};
  for (size_t b = 0; b < kBufs; ++b) {
    const bool head = b == static_cast<size_t>(Buf::kHead) || b == static_cast<size_t>(Buf::kLogits);
    bytes[b] =
        round64(size_t{head ? limits.logits_rows_max : limits.rows_max} * program.width[b] * sizeof(float));
  }
  const auto live = liveness(program);
  const auto clash = [&](size_t a, size_t b) {
    for (size_t s = 0; s < program.stages.size(); ++s) {
      if (live[a][s] && live[b][s]) return true;
    }
    return false;
  };
  std::array<size_t, kBufs> order{};
  for (size_t b = 0; b < kBufs; ++b) order[b] = b;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  for (size_t i = 0; i < kBufs; ++i) {
    const size_t b = order[i];
    // Lowest offset that overlaps no placed buffer it clashes with.
    size_t offset = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t j = 0; j < i; ++j) {
        const size_t other = order[j];
        const bool overlaps =
            offset < layout.buf[other] + bytes[other] && layout.buf[other] < offset + bytes[b];
        if (overlaps && bytes[b] > 0 && clash(b, other))
          offset = layout.buf[other] + bytes[other], moved = true;
      }
    }
    layout.buf[b] = offset;
    layout.bytes = std::max(layout.bytes, offset + bytes[b]);
  }
  for (size_t k = 0; k < kernels::kPanelKinds; ++k) {
    if (program.panel_k[k] == 0) continue;
    layout.panel[k] = layout.bytes;
    layout.bytes += round64(
        kernels::panel_bytes(static_cast<kernels::PanelKind>(k), limits.rows_max, program.panel_k[k]));
  }
  layout.worker_begin = layout.bytes;
  layout.worker_bytes = round64(attend_bytes);
  layout.bytes += layout.worker_bytes * threads;
  return layout;
}

}  // namespace tally::model
