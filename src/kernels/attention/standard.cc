// The textbook form, the baseline of ablation runs: decode the context, then three passes with the scores of
// all rows and heads of the call in memory between them: scores, a softmax of each row with its own maximum,
// weighted sums. Not bit-equal to attend. A call is never cut.
#include "kernels/attention/arithmetic.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/codec.h"

namespace tally::kernels {
namespace attention {
namespace {

constexpr size_t kPartials = 16;  // independent sums, so that the compiler may keep them in lanes

float dot(const float* a, const float* b, size_t n) {
  float part[kPartials] = {}, sum = 0;
  size_t i = 0;
  for (; i + kPartials <= n; i += kPartials)
    for (size_t j = 0; j < kPartials; ++j) part[j] += a[i + j] * b[i + j];
  for (float p : part) sum += p;
  for (; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Decoded operands of one KV head, indexed from the first position any row sees.
struct Context {
  float *keys, *values, *query;
};

Context carve(const tensor::KvLayout& l, size_t context, std::byte* scratch) {
  Context c{};
  c.keys = reinterpret_cast<float*>(scratch);
  c.values = c.keys + context * l.key_dim;
  c.query = c.values + context * l.value_dim;
  return c;
}

// One query head of one token: the positions [begin, end) that it sees, from the context's first on.
struct Row {
  size_t token, head, begin, end;
  float* scores;
};

void write_scores(const AttendArgs& args, const AttentionKernels& codec, const Context& ctx, const Row& row) {
  const tensor::KvLayout& l = *args.kv.layout;
  const float* q = args.q + row.token * args.q_stride + row.head * l.key_dim;
  for (size_t c = 0; c < l.key_dim; ++c) ctx.query[c] = q[c];
  if (rotates_keys(codec.codec)) rotate(ctx.query, l.key_dim);
  const float base2 = base2_scale(args.score_scale);
  const Softcap cap = make_softcap(args.softcap);
  const float slope = args.alibi == nullptr ? 0.f : alibi_slope(args.alibi[row.head]);
  for (size_t j = row.begin; j < row.end; ++j) {
    float s = dot(ctx.query, ctx.keys + j * l.key_dim, l.key_dim) * base2;
    if (cap.limit != 0) s = apply_softcap(s, cap);
    if (args.alibi != nullptr) s = __builtin_fmaf(slope, distance(j, row.end - 1), s);
    row.scores[j] = s;
  }
}

void softmax(const AttendArgs& args, const Row& row) {
  float max = kNoScore, sum = 0;
  for (size_t j = row.begin; j < row.end; ++j) max = row.scores[j] > max ? row.scores[j] : max;
  for (size_t j = row.begin; j < row.end; ++j) {
    row.scores[j] = exp2_nonpositive(row.scores[j] - max);
    sum += row.scores[j];
  }
  const float keep = args.sinks == nullptr ? 1.f : join_sink(args.sinks[row.head], &max, &sum);
  for (size_t j = row.begin; j < row.end; ++j) row.scores[j] = row.scores[j] * keep / sum;
}

void sum_values(const AttendArgs& args, const Context& ctx, const Row& row) {
  const size_t dim = args.kv.layout->value_dim;
  float* out = args.out + row.token * args.out_stride + row.head * dim;
  for (size_t c = 0; c < dim; ++c) out[c] = 0;
  for (size_t j = row.begin; j < row.end; ++j) {
    const float* v = ctx.values + j * dim;
    for (size_t c = 0; c < dim; ++c) out[c] += row.scores[j] * v[c];
  }
}

}  // namespace
}  // namespace attention

size_t attend_standard_scratch_bytes(const tensor::KvLayout& layout, size_t context) {
  return (context * (size_t{layout.key_dim} + layout.value_dim) + layout.key_dim) * sizeof(float);
}

void attend_standard(const AttendArgs& args, const AttentionKernels& codec, const ScoreMatrix& matrix) {
  const tensor::KvLayout& l = *args.kv.layout;
  const size_t origin = attention::first_visible(args.position, args.window),
               end = args.position + args.tokens;
  const attention::Context ctx = attention::carve(l, end - origin, args.scratch);
  for (size_t p = origin; p < end; ++p)
    codec.load(args.kv, p, args.kv_head, ctx.keys + (p - origin) * l.key_dim,
               ctx.values + (p - origin) * l.value_dim);
  const auto is_finite = [&](size_t token) {
    return attention::all_finite(args.q + token * args.q_stride, args.group * l.key_dim);
  };
  const auto each_row = [&](auto pass) {
    for (size_t i = 0; i < args.tokens; ++i) {
      if (!is_finite(i)) continue;
      const size_t position = args.position + i;
      for (size_t g = 0; g < args.group; ++g)
        pass(attention::Row{i, g, attention::first_visible(position, args.window) - origin,
                            position + 1 - origin,
                            matrix.scores + g * matrix.head_stride + i * matrix.row_stride});
    }
  };
  each_row([&](const attention::Row& row) { attention::write_scores(args, codec, ctx, row); });
  each_row([&](const attention::Row& row) { attention::softmax(args, row); });
  each_row([&](const attention::Row& row) { attention::sum_values(args, ctx, row); });
  for (size_t i = 0; i < args.tokens; ++i) {
    if (is_finite(i)) continue;
    if (args.nonfinite != nullptr) args.nonfinite[i] = 1;
    float* out = args.out + i * args.out_stride;
    for (size_t c = 0; c < args.group * l.value_dim; ++c) out[c] = 0;
  }
}

}  // namespace tally::kernels
