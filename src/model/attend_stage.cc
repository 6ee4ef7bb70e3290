#include "model/attend_stage.h"

#include "model/program.h"
#include "model/scratch.h"

#include <algorithm>
#include <cstring>

namespace tally::model {
namespace {

// States are kept for so many rows at full context, but not for so many that they count beside the weights.
constexpr size_t kStateRows = 32, kStateFloatsMax = size_t{4} << 20;

// One call of attend in a stage.
struct Call {
  const Program& program;
  const StepContext& step;
  const Instruction& in;
  size_t head, worker;

  Scratch::State& scratch() const { return *step.scratch; }
  void run(const kernels::AttendArgs& args) const {
    step.kernels->attention_for(args.kv.layout->codec).attend(args);
  }
};

// The states of a tile's own spans, and where it finds those of its share.
kernels::AttendCut cut_of(const Call& call, const AttendTile& tile) {
  Scratch::State& s = call.scratch();
  kernels::AttendCut cut{.states = s.attend_states() + tile.states + call.head * tile.head_states};
  if (tile.share == AttendTile::kAlone) return cut;
  const AttendShare& share = s.attend.shares()[tile.share];
  cut.shared = {.states = s.attend_states() + share.states + call.head * share.head_states,
                .spans = share.spans,
                .tokens = share.rows,
                .token = tile.share_row};
  return cut;
}

void end_piece(const Call& call, const AttendTile& tile) {
  Scratch::State& s = call.scratch();
  if (!s.attend.end_piece(tile, call.head)) return;
  kernels::AttendArgs args = attend_args(call.program, call.step, call.in, tile, call.head);
  kernels::AttendCut cut = cut_of(call, tile);
  cut.merge = true;
  args.cut = &cut, args.scratch = s.worker(call.worker);
  call.run(args);
}

// The rows of all tiles of a share as rows behind its spans: to what each gets there its own position says
// nothing.
void attend_share(const Call& call, const AttendPiece& piece) {
  Scratch::State& s = call.scratch();
  const AttendShare& share = s.attend.shares()[piece.share];
  kernels::AttendArgs args =
      attend_args(call.program, call.step, call.in, s.attend.tiles()[piece.tile], call.head);
  const size_t row_floats = args.group * call.program.key_dim;
  auto* queries = reinterpret_cast<float*>(s.worker(call.worker) + s.layout.shared_queries);
  for (const uint32_t t : share.tiles) {
    const AttendTile& tile = s.attend.tiles()[t];
    const float* from = attend_args(call.program, call.step, call.in, tile, call.head).q;
    for (size_t row = 0; row < tile.rows; ++row)
      std::memcpy(queries + (tile.share_row + row) * row_floats, from + row * args.q_stride,
                  row_floats * sizeof(float));
  }
  args.q = queries, args.q_stride = row_floats;
  args.tokens = share.rows, args.position = size_t{share.spans} * kernels::kSpanTokens;
  args.out = nullptr;
  args.scratch = s.worker(call.worker);
  const kernels::AttendCut cut{.states = s.attend_states() + share.states + call.head * share.head_states,
                               .span_begin = piece.span_begin,
                               .span_end = piece.span_end};
  args.cut = &cut;
  call.run(args);
  for (const uint32_t t : share.tiles) end_piece(call, s.attend.tiles()[t]);
}

}  // namespace

size_t attend_states_max(const Program& program, const StepLimits& limits, size_t threads) {
  if (limits.standard_attention) return 0;
  size_t row = 0;  // floats of one row at full context
  for (const LayerAttention& at : program.attention) {
    const size_t seen = at.window == 0 ? limits.context_max : std::min(limits.context_max, at.window);
    // A window begins anywhere in a span.
    const size_t spans = (seen + kernels::kSpanTokens - 1) / kernels::kSpanTokens + (at.window == 0 ? 0 : 1);
    // Tiles are cut where threads are many; in any case sequences may share what they see in full.
    const bool cuts = threads > 1 && at.kv_heads < kItemsPerThread * threads;
    const bool shares = at.window == 0 && at.alibi.empty();
    if (spans >= 2 && (cuts || shares))
      row = std::max(row, spans * at.heads * kernels::attend_state_floats(program.value_dim));
  }
  return std::max(row, std::min(kStateRows * row, kStateFloatsMax));
}

size_t shared_query_bytes(const Program& program) {
  return size_t{kTileQueries} * program.key_dim * sizeof(float);
}

size_t begin_attend(const Program& program, const StepContext& step, const Instruction& in) {
  const LayerAttention& at = program.attention[in.layer];
  AttendPlan& plan = step.scratch->attend;
  AttendBlocks blocks;
  if (step.batch->cascade) blocks = {step.batch->tables, step.kv->layout(LayerIdx{in.layer}).block_tokens};
  plan.prepare(step.batch->segments, blocks,
               {.kv_heads = at.kv_heads,
                .group = at.heads / at.kv_heads,
                .window = at.window,
                .state_floats = kernels::attend_state_floats(program.value_dim),
                .distance_counts = !at.alibi.empty()});
  return plan.pieces().size() * at.kv_heads;
}

kernels::AttendArgs attend_args(const Program& program, const StepContext& step, const Instruction& in,
                                const AttendTile& tile, size_t head) {
  const Scratch::State& s = *step.scratch;
  const LayerAttention& at = program.attention[in.layer];
  const size_t group = at.heads / at.kv_heads;
  const size_t q_width = program.width_of(in.src), out_width = program.width_of(in.dst);
  kernels::AttendArgs args;
  args.kv = step.sequence(*step.kv, in.layer, step.batch->segments[tile.segment]);
  args.kv_head = head, args.group = group;
  args.q = s.buf(in.src) + tile.row_begin * q_width + head * group * program.key_dim;
  args.q_stride = q_width;
  args.tokens = tile.rows, args.position = tile.position;
  args.window = at.window, args.score_scale = program.score_scale, args.softcap = program.softcap;
  args.sinks = at.sinks == nullptr ? nullptr : at.sinks + head * group;
  args.alibi = at.alibi.empty() ? nullptr : at.alibi.data() + head * group;
  args.out = s.buf(in.dst) + tile.row_begin * out_width + head * group * program.value_dim;
  args.out_stride = out_width;
  return args;
}

void attend_item(const Program& program, const StepContext& step, const Instruction& in, size_t item,
                 size_t worker) {
  Scratch::State& s = *step.scratch;
  const uint32_t kv_heads = program.attention[in.layer].kv_heads;
  const Call call{program, step, in, item % kv_heads, worker};
  const AttendPiece& piece = s.attend.pieces()[item / kv_heads];
  if (piece.share != AttendTile::kAlone) return attend_share(call, piece);

  const AttendTile& tile = s.attend.tiles()[piece.tile];
  kernels::AttendArgs args = attend_args(program, step, in, tile, call.head);
  args.scratch = s.worker(worker);
  args.nonfinite = s.worker_nonfinite.data() + worker * s.limits.rows_max + tile.row_begin;
  if (s.limits.standard_attention)
    return kernels::attend_standard(args, step.kernels->attention_for(args.kv.layout->codec),
                                    s.score_rows(call.head * args.group, tile.row_begin));
  if (tile.pieces == 1) return call.run(args);
  kernels::AttendCut cut = cut_of(call, tile);
  cut.span_begin = piece.span_begin, cut.span_end = piece.span_end;
  args.cut = &cut;
  call.run(args);
  end_piece(call, tile);
}

}  // namespace tally::model
