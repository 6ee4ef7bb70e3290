// The interpreter: for each stage the kernels through parallel_for.
#include "model/program.h"

#include "base/check.h"
#include "base/clock.h"
#include "model/scratch.h"

#include <algorithm>
#include <cstring>

namespace tally::model {
namespace {

constexpr uint32_t kRowBlock = 16;    // rows of one item of a rows stage: the panel's token tile
constexpr uint32_t kAttendRows = 32;  // rows of one item of an attend stage

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
        panel(in, head, begin, end);
        continue;
      }
      for (uint32_t r = begin; r < end; ++r) row(in, r);
    }
  }

  void linear(const Chunk& chunk, bool head) const {
    const Instruction& in = p_.code[chunk.instruction];
    kernels::LinearArgs args;
    args.weights = in.matrix.data, args.rows = in.matrix.rows, args.k = in.matrix.k;
    args.panel = s_.panel(in.matrix.format->panel), args.tokens = head ? head_rows() : s_.rows;
    args.out = s_.buf(in.dst), args.out_stride = width(in.dst);
    args.group_begin = chunk.group_begin, args.group_end = chunk.group_end;
    in.matrix.format->run(args);
  }

  void attend(const Instruction& in, size_t item, size_t worker) const {
    const AttendTile& tile = s_.tiles[item / p_.kv_heads];
    const size_t head = item % p_.kv_heads, group = p_.heads / p_.kv_heads;
    const kernels::AttentionKernels& codec =
        step_.kernels->attention_for(step_.kv->layout(LayerIdx{in.layer}).codec);
    kernels::AttendArgs args;
    args.kv = sequence(in.layer, step_.batch->segments[tile.segment]);
    args.kv_head = head, args.group = group;
    args.q = s_.buf(in.src) + size_t{tile.row_begin} * width(in.src) + head * group * p_.key_dim;
    args.q_stride = width(in.src);
    args.tokens = tile.rows, args.position = s_.row_position[tile.row_begin];
    args.window = p_.window[in.layer], args.score_scale = p_.score_scale, args.softcap = p_.softcap;
    args.out = s_.buf(in.dst) + size_t{tile.row_begin} * width(in.dst) + head * group * p_.value_dim;
    args.out_stride = width(in.dst);
    args.scratch = s_.worker(worker),
    args.nonfinite = s_.worker_nonfinite.data() + worker * s_.limits.rows_max + tile.row_begin;
    if (s_.limits.standard_attention) {
      kernels::attend_standard(args, codec);
    } else {
      codec.attend(args);
    }
  }

  uint32_t head_rows() const { return static_cast<uint32_t>(step_.batch->logits_rows.size()); }

 private:
  uint32_t width(Buf b) const { return p_.width[static_cast<size_t>(b)]; }
  float* at(Buf b, uint32_t r) const { return s_.buf(b) + size_t{r} * width(b); }

  kernels::KvSequence sequence(uint32_t layer, const Segment& segment) const {
    const LayerIdx idx{layer};
    return {&step_.kv->layout(idx), step_.kv->layer(idx), step_.batch->tables.data() + segment.table_begin};
  }

  void panel(const Instruction& in, bool head, uint32_t begin, uint32_t end) const {
    kernels::PanelArgs args;
    args.x = s_.buf(in.src), args.x_stride = width(in.src), args.k = width(in.src);
    args.tokens = head ? head_rows() : s_.rows, args.token_begin = begin, args.token_end = end;
    args.panel = s_.panel(in.panel), args.nonfinite = head ? s_.head_nonfinite.data() : s_.nonfinite.data();
    step_.kernels->panel[static_cast<size_t>(in.panel)](args);
  }

  void row(const Instruction& in, uint32_t r) const {
    const kernels::VectorKernels& v = step_.kernels->vector;
    float* dst = at(in.dst, r);
    const float* src = in.op == Op::kGather ? nullptr : at(in.src, r);
    const uint32_t n = width(in.dst);
    switch (in.op) {
      case Op::kEmbed:
        return step_.weights->embed(static_cast<uint32_t>(raw(step_.batch->tokens[r])), dst);
      case Op::kScale:
        return v.scale(in.value, n, dst);
      case Op::kNorm:
        return v.rms_norm(src, in.vector, in.norm_eps, n, dst);
      case Op::kBias:
        return v.add(in.vector, n, dst);
      case Op::kAdd:
        return v.add(src, n, dst);
      case Op::kSoftcap:
        return v.softcap(in.value, n, dst);
      case Op::kGateAct:
        return (in.activation == Activation::kSilu ? v.silu_mul : v.gelu_mul)(dst, src, n, dst);
      case Op::kHeadNorm:
        for (uint32_t h = 0; h < n; h += in.width)
          v.rms_norm(dst + h, in.vector, in.norm_eps, in.width, dst + h);
        return;
      case Op::kRope: {
        const uint32_t pairs = in.rope->spec.rotated / 2;
        const float* cos_sin = in.rope->cos_sin + size_t{s_.row_position[r]} * pairs * 2;
        const auto rotate = in.rope->spec.kind == RopeKind::kNorm ? v.rope_norm : v.rope_neox;
        for (uint32_t h = 0; h < n; h += in.width) rotate(cos_sin, pairs, dst + h);
        return;
      }
      case Op::kStoreKv: {
        const kernels::KvSequence kv = sequence(in.layer, step_.batch->segments[s_.row_segment[r]]);
        if (!step_.kernels->attention_for(kv.layout->codec).store(kv, s_.row_position[r], src, dst))
          s_.nonfinite[r] = 1;
        return;
      }
      case Op::kGather: {
        const uint32_t from = step_.batch->logits_rows[r];
        std::memcpy(dst, at(in.src, from), size_t{n} * sizeof(float));
        return;
      }
      case Op::kPanel:
      case Op::kLinear:
      case Op::kAttend:
        break;
    }
    TALLY_UNREACHABLE("not a row instruction");
  }

  const Program& p_;
  const StepContext& step_;
  Scratch::State& s_;
};

// Positions and segments of rows, and the tiles of the attend stages.
void lay_out_rows(const Batch& batch, Scratch::State& s) {
  s.rows = static_cast<uint32_t>(batch.tokens.size());
  TALLY_CHECK(s.rows <= s.limits.rows_max && batch.logits_rows.size() <= s.limits.logits_rows_max,
              "batch exceeds the scratch", s.rows, batch.logits_rows.size());
  std::fill_n(s.nonfinite.begin(), s.rows, uint8_t{0});
  std::fill(s.worker_nonfinite.begin(), s.worker_nonfinite.end(), uint8_t{0});
  std::fill_n(s.head_nonfinite.begin(), batch.logits_rows.size(), uint8_t{0});
  s.tiles.clear();
  uint32_t next = 0;
  for (uint32_t g = 0; g < batch.segments.size(); ++g) {
    const Segment& segment = batch.segments[g];
    TALLY_CHECK(segment.row_begin == next, "segments do not cover the rows", g);
    for (uint32_t r = 0; r < segment.rows; ++r) {
      s.row_position[next + r] = segment.position + r;
      s.row_segment[next + r] = g;
    }
    for (uint32_t r = 0; r < segment.rows; r += kAttendRows) {
      s.tiles.push_back({g, segment.row_begin + r, std::min(kAttendRows, segment.rows - r)});
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

double& account_of(const Stage& stage, OpTimes& times) {
  switch (stage.kind) {
    case StageKind::kLinear:
      return times.linear_s;
    case StageKind::kHeadLinear:
    case StageKind::kHeadRows:
      return times.head_s;
    case StageKind::kAttend:
      return times.attention_s;
    case StageKind::kRows:
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
  for (const Stage& stage : program.stages) {
    const bool head = stage.kind == StageKind::kHeadRows || stage.kind == StageKind::kHeadLinear;
    if (head && interpreter.head_rows() == 0) continue;
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
      case StageKind::kAttend:
        pool.parallel_for(s.tiles.size() * program.kv_heads, [&](size_t item, size_t worker) {
          interpreter.attend(program.code[stage.begin], item, worker);
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
