#include "model/kv_probe.h"

#include "model/scratch.h"

#include <algorithm>
#include <iterator>

namespace tally::model {
namespace {

size_t attention_width(const Program& program, const LayerAttention& at) {
  return size_t{at.heads} * program.value_dim;
}

// The mean over the channels of a layer's attention of each channel's own relative error: what a channel
// counts for is up to the matrix behind it, so a large one does not excuse what it does to small ones.
double compare(const StepContext& step, const Instruction& in, size_t stride, size_t width) {
  KvProbe& probe = *step.probe;
  const float* exact = step.scratch->buf(in.dst);
  const uint32_t rows = step.scratch->rows;
  double sum = 0;
  for (size_t c = 0; c < width; ++c) {
    double error = 0, energy = 0;
    for (size_t row = 0; row < rows; ++row) {
      const double o = exact[row * stride + c], d = probe.out[row * width + c] - o;
      energy += o * o, error += d * d;
    }
    if (error > 0) sum += error < energy ? error / energy : 1;
  }
  const bool fits = std::count(probe.refused.begin(), probe.refused.end(), 0) == std::ssize(probe.refused);
  std::fill(probe.refused.begin(), probe.refused.end(), uint8_t{0});
  return fits ? sum / static_cast<double>(width) : 1;
}

}  // namespace

void probe_store(const StepContext& step, uint32_t layer, uint32_t row, const float* k, const float* v) {
  const Scratch::State& s = *step.scratch;
  const kernels::KvSequence kv =
      step.sequence(*step.probe->view, layer, step.batch->segments[s.row_segment[row]]);
  if (!step.kernels->attention_for(kv.layout->codec).store(kv, s.row_position[row], k, v))
    step.probe->refused[row] = 1;
}

void probe_attention(const Program& program, const StepContext& step, const Instruction& in,
                     base::ThreadPool& pool) {
  KvProbe& probe = *step.probe;
  const Scratch::State& s = *step.scratch;
  const LayerAttention& at = program.attention[in.layer];
  const AttendTile all{.rows = s.rows, .position = s.row_position[0]};
  const size_t width = attention_width(program, at);
  pool.parallel_for(at.kv_heads, [&](size_t head, size_t worker) {
    kernels::AttendArgs args = attend_args(program, step, in, all, head);
    args.kv = step.sequence(*probe.view, in.layer, step.batch->segments[0]);
    args.out = probe.out + head * args.group * program.value_dim, args.out_stride = width;
    args.scratch = probe.worker + worker * probe.worker_bytes;
    step.kernels->attention_for(args.kv.layout->codec).attend(args);
  });
  probe.damage[in.layer] = compare(step, in, program.width_of(in.dst), width);
}

ProbeLayout lay_out_probe(const Program& program, const kv::PoolShape& reference,
                          const kv::PoolShape& candidate, size_t tokens, size_t threads) {
  ProbeLayout l;
  const auto take = [&](size_t bytes) {
    const size_t at = l.bytes;
    l.bytes += (bytes + 63) & ~size_t{63};
    return at;
  };
  size_t width = 0;
  for (size_t i = 0; i < program.attention.size(); ++i) {
    const LayerAttention& at = program.attention[i];
    width = std::max(width, attention_width(program, at));
    l.worker_bytes =
        std::max(l.worker_bytes, kernels::attend_scratch_bytes(candidate.layers[i], at.heads / at.kv_heads));
  }
  l.worker_bytes = (l.worker_bytes + 63) & ~size_t{63};
  l.reference = take(reference.pool_bytes());
  l.candidate = take(candidate.pool_bytes());
  l.out = take(tokens * width * sizeof(float));
  l.worker = take(threads * l.worker_bytes);
  return l;
}

}  // namespace tally::model
