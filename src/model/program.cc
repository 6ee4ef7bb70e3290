// The interpreter: for each stage the kernels through parallel_for.
#include "model/program.h"

#include "base/check.h"
#include "base/clock.h"
#include "model/kv_probe.h"
#include "model/scratch.h"

#include <algorithm>
#include <cstring>

namespace tally::model {
namespace {

constexpr uint32_t kRowBlock = 16;  // rows of one item of a rows stage: the panel's token tile
constexpr float kSwigluAlpha = 1.702f, kSwigluLimit = 7;  // gpt-oss; no key of the file says them

class Interpreter {
 public:
  Interpreter(const Program& program, const StepContext& step)
      : p_(program), step_(step), s_(*step.scratch) {}

  void rows(const Stage& stage, uint32_t block) const {
    const bool head = stage.kind == StageKind::kHeadRows;
    const uint32_t all = head ? head_rows() : s_.rows;
    const uint32_t begin = block * kRowBlock, end = std::min(all, begin + kRowBlock);
    for (uint32_t i = stage.begin; i < stage.end; ++i) {
      const Instruction& in = p_.code[i];
      if (in.op == Op::kPanel) {
        kernels::PanelArgs args = panel_args(in);
        args.tokens = all, args.token_begin = begin, args.token_end = end;
        args.panel = s_.panel(in.panel), args.nonfinite = (head ? s_.head_nonfinite : s_.nonfinite).data();
        step_.kernels->panel[static_cast<size_t>(in.panel)](args);
        continue;
      }
      for (uint32_t r = begin; r < end; ++r) row(in, r);
    }
  }

  void linear(const Chunk& chunk, bool head) const {
    const Instruction& in = p_.code[chunk.instruction];
    kernels::LinearArgs args = linear_args(in, chunk);
    args.panel = s_.panel(in.matrix.format->panel), args.tokens = head ? head_rows() : s_.rows;
    in.matrix.format->run(args);
  }

  void expert_rows(const Stage& stage, const ExpertTile& tile) const {
    for (uint32_t i = stage.begin; i < stage.end; ++i) {
      const Instruction& in = p_.code[i];
      if (in.op == Op::kPanel) {
        kernels::PanelArgs args = panel_args(in);
        args.x += size_t{tile.expert_begin} * args.x_stride;
        args.tokens = tile.expert_slots;
        args.token_begin = tile.slot_begin - tile.expert_begin,
        args.token_end = args.token_begin + tile.slots;
        args.panel = expert_panel(in.panel, in.n, tile.expert_begin);
        args.nonfinite = s_.slot_nonfinite.data() + tile.expert_begin;
        step_.kernels->panel[static_cast<size_t>(in.panel)](args);
        continue;
      }
      for (uint32_t slot = tile.slot_begin; slot < tile.slot_begin + tile.slots; ++slot)
        expert_row(in, slot, tile.expert);
    }
  }

  void expert_linear(const Chunk& chunk, const ExpertTile& expert) const {
    const Instruction& in = p_.code[chunk.instruction];
    kernels::LinearArgs args = linear_args(in, chunk);
    args.weights += expert.expert * in.matrix.expert_step;
    args.panel = expert_panel(in.matrix.format->panel, in.matrix.k, expert.expert_begin);
    args.tokens = expert.expert_slots;
    args.out += size_t{expert.expert_begin} * args.out_stride;
    in.matrix.format->run(args);
  }

  uint32_t head_rows() const { return static_cast<uint32_t>(step_.batch->logits_rows.size()); }

 private:
  uint32_t width(Buf b) const { return p_.width_of(b); }
  float* at_row(Buf b, uint32_t r) const { return s_.buf(b) + size_t{r} * width(b); }

  kernels::PanelArgs panel_args(const Instruction& in) const {
    kernels::PanelArgs args;
    args.x = s_.buf(in.src), args.x_stride = width(in.src), args.k = in.n;
    return args;
  }
  kernels::LinearArgs linear_args(const Instruction& in, const Chunk& chunk) const {
    kernels::LinearArgs args;
    args.weights = in.matrix.data, args.rows = in.matrix.rows, args.k = in.matrix.k;
    args.out = s_.buf(in.dst), args.out_stride = width(in.dst);
    args.group_begin = chunk.group_begin, args.group_end = chunk.group_end;
    args.tuning = in.matrix.format->tuning;
    return args;
  }
  // Every expert's panel begins where its slots do: a tile of 16 has one size.
  std::byte* expert_panel(kernels::PanelKind kind, size_t k, uint32_t slot) const {
    return s_.expert_panel(kind) + slot / kRowBlock * kernels::panel_bytes(kind, kRowBlock, k);
  }

  void norm(const Instruction& in, const float* src, float* dst) const {
    const kernels::VectorKernels& v = step_.kernels->vector;
    const float* w = in.vector;
    for (uint32_t h = 0; h < in.n; h += in.width) {
      if (p_.norm == NormKind::kRms)
        v.rms_norm(src + h, w, in.value, in.width, dst + h);
      else
        v.layer_norm(src + h, w, in.bias, in.value, in.width, dst + h);
      if (w != nullptr) w += in.vector_step;
    }
  }

  // out = act(x) * up, or act(x) without up.
  void activate(const float* up, uint32_t n, float* x) const {
    const kernels::VectorKernels& v = step_.kernels->vector;
    switch (p_.activation) {
      case Activation::kSilu:
        return v.silu_mul(x, up, n, x);
      case Activation::kGeluTanh:
        return v.gelu_mul(x, up, n, x);
      case Activation::kGeluErf:
        return v.gelu_erf_mul(x, up, n, x);
      case Activation::kRelu2:
        return v.relu2_mul(x, up, n, x);
      case Activation::kSwigluOai:
        return v.swiglu_oai(x, up, kSwigluAlpha, kSwigluLimit, n, x);
    }
  }

  void rope(const Instruction& in, uint32_t r, float* dst) const {
    const uint32_t pairs = in.rope->spec.rotated / 2;
    const float* cos_sin = in.rope->cos_sin + size_t{s_.row_position[r]} * pairs * 2;
    const kernels::VectorKernels& v = step_.kernels->vector;
    const auto rotate = in.rope->spec.kind == RopeKind::kNorm ? v.rope_norm : v.rope_neox;
    for (uint32_t h = in.offset; h < in.n; h += in.width) rotate(cos_sin, pairs, dst + h);
  }

  void assemble_keys(const Instruction& in, const float* src, uint32_t r, float* dst) const {
    const uint32_t rotated = in.width - in.offset;
    const float* tail = at_row(Buf::kLatent, r) + width(Buf::kLatent) - rotated;
    for (uint32_t h = 0; h < in.n; h += in.width, src += in.offset) {
      std::memcpy(dst + h, src, size_t{in.offset} * sizeof(float));
      std::memcpy(dst + h + in.offset, tail, size_t{rotated} * sizeof(float));
    }
  }

  void route(const Instruction& in, const float* logits, uint32_t r) const {
    const MoeSpec& moe = p_.moe;
    kernels::RouteArgs args;
    args.logits = logits, args.experts = moe.experts, args.used = moe.used, args.gating = moe.gating;
    args.selection_bias = in.vector, args.groups = moe.groups, args.groups_used = moe.groups_used;
    args.normalize = moe.normalize, args.scale = moe.scale;
    args.ids = s_.route_ids.data() + size_t{r} * moe.used;
    args.weights = s_.route_weights.data() + size_t{r} * moe.used;
    kernels::route(args);
  }

  // In rank order, so that how rows are grouped does not change bits.
  void expert_sum(const Instruction& in, uint32_t r, float* dst) const {
    std::fill_n(dst, in.n, 0.f);
    for (uint32_t rank = 0; rank < p_.moe.used; ++rank) {
      const size_t i = size_t{r} * p_.moe.used + rank;
      const uint32_t slot = s_.row_slot[i];
      step_.kernels->vector.add_scaled(s_.route_weights[i], at_row(in.src, slot), in.n, dst);
      s_.nonfinite[r] |= s_.slot_nonfinite[slot];
    }
  }

  void expert_row(const Instruction& in, uint32_t slot, uint32_t expert) const {
    float* dst = at_row(in.dst, slot);
    switch (in.op) {
      case Op::kExpertGather:
        std::memcpy(dst, at_row(in.src, s_.slot_row[slot]), size_t{in.n} * sizeof(float));
        return;
      case Op::kExpertBias:
        return step_.kernels->vector.add(in.vector + size_t{expert} * in.n, in.n, dst);
      case Op::kAct:
        return activate(nullptr, in.n, dst);
      case Op::kGateAct:
        return activate(at_row(in.src, slot), in.n, dst);
      default:
        TALLY_UNREACHABLE("not an instruction of slots");
    }
  }

  void row(const Instruction& in, uint32_t r) const {
    const kernels::VectorKernels& v = step_.kernels->vector;
    float* dst = at_row(in.dst, r);
    const float* src = in.op == Op::kGather || in.op == Op::kExpertSum ? nullptr : at_row(in.src, r);
    switch (in.op) {
      case Op::kEmbed:
        return step_.weights->row(Slot::kTokenEmbd, static_cast<uint32_t>(raw(step_.batch->tokens[r])), dst);
      case Op::kEmbedPosition:
        return step_.weights->row(Slot::kPositionEmbd, s_.row_position[r], dst);
      case Op::kScale:
        return v.scale(in.value, in.n, dst);
      case Op::kNorm:
        return norm(in, src, dst);
      case Op::kBias:
        return v.add(in.vector, in.n, dst);
      case Op::kClamp:
        return v.clamp(in.value, in.n, dst);
      case Op::kAdd:
        return in.value == 1 ? v.add(src, in.n, dst) : v.add_scaled(in.value, src, in.n, dst);
      case Op::kSoftcap:
        return v.softcap(in.value, in.n, dst);
      case Op::kAct:
        return activate(nullptr, in.n, dst);
      case Op::kGateAct:
        return activate(src, in.n, dst);
      case Op::kSigmoidScale:
        return v.sigmoid_scale(src[0], in.n, dst);
      case Op::kRope:
        return rope(in, r, dst);
      case Op::kAssembleKeys:
        return assemble_keys(in, src, r, dst);
      case Op::kRoute:
        return route(in, src, r);
      case Op::kExpertSum:
        return expert_sum(in, r, dst);
      case Op::kStoreKv: {
        const Segment& segment = step_.batch->segments[s_.row_segment[r]];
        const kernels::KvSequence kv = step_.sequence(*step_.kv, in.layer, segment);
        if (!step_.kernels->attention_for(kv.layout->codec).store(kv, s_.row_position[r], src, dst))
          s_.nonfinite[r] = 1;
        if (step_.probe != nullptr) probe_store(step_, in.layer, r, src, dst);
        return;
      }
      case Op::kGather:
        std::memcpy(dst, at_row(in.src, step_.batch->logits_rows[r]), size_t{in.n} * sizeof(float));
        return;
      case Op::kPanel:
      case Op::kLinear:
      case Op::kAttend:
      case Op::kExpertGather:
      case Op::kExpertBias:
        break;
    }
    TALLY_UNREACHABLE("not a row instruction");
  }

  const Program& p_;
  const StepContext& step_;
  Scratch::State& s_;
};

// Gives every expert that a row chose its slots, beginning at a multiple of 16, in the order of rows.
void lay_out_experts(const MoeSpec& moe, Scratch::State& s) {
  const size_t pairs = size_t{s.rows} * moe.used;
  std::vector<uint32_t>& next = s.expert_next;
  std::fill(next.begin(), next.end(), 0u);
  for (size_t i = 0; i < pairs; ++i) ++next[s.route_ids[i]];
  s.experts.clear(), s.expert_tiles.clear();
  uint32_t begin = 0;
  for (uint32_t e = 0; e < moe.experts; ++e) {
    const uint32_t n = next[e];
    next[e] = begin;
    if (n == 0) continue;
    s.experts.push_back({e, begin, n, begin, n});
    for (uint32_t at = 0; at < n; at += kRowBlock)
      s.expert_tiles.push_back({e, begin + at, std::min(kRowBlock, n - at), begin, n});
    begin += (n + kRowBlock - 1) / kRowBlock * kRowBlock;
  }
  TALLY_CHECK(begin <= s.slot_row.size(), "slots exceed the scratch", begin, s.slot_row.size());
  std::fill_n(s.slot_nonfinite.begin(), begin, uint8_t{0});
  for (size_t i = 0; i < pairs; ++i) {
    const uint32_t slot = next[s.route_ids[i]]++;
    s.row_slot[i] = slot;
    s.slot_row[slot] = static_cast<uint32_t>(i / moe.used);
  }
}

// Positions and segments of rows.
void lay_out_rows(const Batch& batch, Scratch::State& s) {
  s.rows = static_cast<uint32_t>(batch.tokens.size());
  TALLY_CHECK(s.rows <= s.limits.rows_max && batch.logits_rows.size() <= s.limits.logits_rows_max,
              "batch exceeds the scratch", s.rows, batch.logits_rows.size());
  std::fill_n(s.nonfinite.begin(), s.rows, uint8_t{0});
  std::fill(s.worker_nonfinite.begin(), s.worker_nonfinite.end(), uint8_t{0});
  std::fill_n(s.head_nonfinite.begin(), batch.logits_rows.size(), uint8_t{0});
  s.attend.begin_step();
  uint32_t next = 0;
  for (uint32_t g = 0; g < batch.segments.size(); ++g) {
    const Segment& segment = batch.segments[g];
    TALLY_CHECK(segment.row_begin == next, "segments do not cover the rows", g);
    for (uint32_t r = 0; r < segment.rows; ++r) {
      s.row_position[next + r] = segment.position + r;
      s.row_segment[next + r] = g;
    }
    next += segment.rows;
  }
  TALLY_CHECK(next == s.rows, "segments do not cover the rows", next, s.rows);
}

// A row is bad if a panel, its cache write, any of its heads or its final norm met a non-finite value.
void merge_nonfinite(const Batch& batch, Scratch::State& s) {
  for (size_t i = 0; i < s.worker_nonfinite.size(); ++i) {
    if (s.worker_nonfinite[i] != 0) s.nonfinite[i % s.limits.rows_max] = 1;
  }
  for (size_t i = 0; i < batch.logits_rows.size(); ++i)
    s.nonfinite[batch.logits_rows[i]] |= s.head_nonfinite[i];
}

// The turns of a pass in the ring, if there is one. A layer is given back with the first product of the next
// one, or the end of the pass.
class Turns {
 public:
  explicit Turns(LayerRing* ring) : ring_(ring) {}
  Turns(const Turns&) = delete;
  Turns& operator=(const Turns&) = delete;
  ~Turns() {
    if (ring_ != nullptr) ring_->end_pass();
  }
  // Before products of that turn, or of matrices that stay (-1). False: the layer will never be there.
  bool enter(int32_t turn) {
    if (turn == now_) return true;
    if (now_ >= 0) ring_->leave(static_cast<uint32_t>(now_));
    now_ = turn;
    return turn < 0 || ring_->enter(static_cast<uint32_t>(turn));
  }

 private:
  LayerRing* ring_;
  int32_t now_ = -1;
};

double& account_of(const Stage& stage, OpTimes& times) {
  switch (stage.kind) {
    case StageKind::kLinear:
    case StageKind::kExpertLinear:
      return times.linear_s;
    case StageKind::kHeadLinear:
    case StageKind::kHeadRows:
      return times.head_s;
    case StageKind::kAttend:
      return times.attention_s;
    case StageKind::kRows:
    case StageKind::kExpertRows:
      break;
  }
  return times.other_s;
}

}  // namespace

void run(const Program& program, const StepContext& step, base::ThreadPool& pool) {
  Scratch::State& s = *step.scratch;
  lay_out_rows(*step.batch, s);
  s.times = {};
  const Interpreter interpreter(program, step);
  const auto blocks = [](uint32_t rows) { return (rows + kRowBlock - 1) / kRowBlock; };
  int64_t mark = base::now_us();
  Turns turns(step.weights->ring());
  for (const Stage& stage : program.stages) {
    const bool head = stage.kind == StageKind::kHeadRows || stage.kind == StageKind::kHeadLinear;
    if (head && interpreter.head_rows() == 0) continue;
    if (!stage.chunks.empty() && !turns.enter(stage.turn)) {
      std::fill_n(s.nonfinite.begin(), s.rows, uint8_t{1});
      return;
    }
    switch (stage.kind) {
      case StageKind::kRows:
      case StageKind::kHeadRows:
        if (stage.begin == stage.end) continue;
        pool.parallel_for(blocks(head ? interpreter.head_rows() : s.rows),
                          [&](size_t item, size_t) { interpreter.rows(stage, static_cast<uint32_t>(item)); });
        break;
      case StageKind::kLinear:
      case StageKind::kHeadLinear:
        pool.parallel_for(stage.chunks.size(),
                          [&](size_t item, size_t) { interpreter.linear(stage.chunks[item], head); });
        break;
      case StageKind::kAttend: {
        const Instruction& in = program.code[stage.begin];
        pool.parallel_for(begin_attend(program, step, in),
                          [&](size_t item, size_t worker) { attend_item(program, step, in, item, worker); });
        if (step.probe != nullptr) probe_attention(program, step, in, pool);
        break;
      }
      case StageKind::kExpertRows:
        if (stage.begin == stage.end) continue;
        if (program.code[stage.begin].op == Op::kExpertGather) lay_out_experts(program.moe, s);
        pool.parallel_for(s.expert_tiles.size(),
                          [&](size_t item, size_t) { interpreter.expert_rows(stage, s.expert_tiles[item]); });
        break;
      case StageKind::kExpertLinear:
        pool.parallel_for(s.experts.size() * stage.chunks.size(), [&](size_t item, size_t) {
          interpreter.expert_linear(stage.chunks[item % stage.chunks.size()],
                                    s.experts[item / stage.chunks.size()]);
        });
        break;
    }
    const int64_t now = base::now_us();
    account_of(stage, s.times) += static_cast<double>(now - mark) * 1e-6;
    mark = now;
  }
  merge_nonfinite(*step.batch, s);
}

}  // namespace tally::model
