// The plain three-step form, the baseline of ablation runs: decode the context, then for each row scores over
// all of it, one softmax with the row's own maximum, and the weighted sum. Not bit-equal to attend. A call is
// never cut.
#include "kernels/attention/arithmetic.h"
#include "kernels/attention/attention.h"

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
  float *keys, *values, *scores, *query;
};

// What a row adds to its scores.
struct RowBias {
  const float *slope, *sink;  // nullptr: none
};

Context carve(const tensor::KvLayout& l, size_t context, std::byte* scratch) {
  Context c{};
  c.keys = reinterpret_cast<float*>(scratch);
  c.values = c.keys + context * l.key_dim;
  c.scores = c.values + context * l.value_dim;
  c.query = c.scores + context;
  return c;
}

void standard_row(const AttendArgs& args, const Context& ctx, size_t origin, size_t position, RowBias bias,
                  float* out) {
  const tensor::KvLayout& l = *args.kv.layout;
  const float base2 = base2_scale(args.score_scale);
  const Softcap cap = make_softcap(args.softcap);
  const size_t begin = first_visible(position, args.window) - origin, end = position + 1 - origin;
  const float slope = bias.slope == nullptr ? 0.f : alibi_slope(*bias.slope);
  float max = kNoScore, sum = 0;
  for (size_t j = begin; j < end; ++j) {
    float s = dot(ctx.query, ctx.keys + j * l.key_dim, l.key_dim) * base2;
    if (cap.limit != 0) s = apply_softcap(s, cap);
    if (bias.slope != nullptr) s = __builtin_fmaf(slope, distance(j, end - 1), s);
    ctx.scores[j] = s;
    max = s > max ? s : max;
  }
  for (size_t j = begin; j < end; ++j) {
    ctx.scores[j] = exp2_nonpositive(ctx.scores[j] - max);
    sum += ctx.scores[j];
  }
  const float keep = bias.sink == nullptr ? 1.f : join_sink(*bias.sink, &max, &sum);
  for (size_t c = 0; c < l.value_dim; ++c) out[c] = 0;
  for (size_t j = begin; j < end; ++j) {
    const float p = ctx.scores[j] * keep / sum;
    const float* v = ctx.values + j * l.value_dim;
    for (size_t c = 0; c < l.value_dim; ++c) out[c] += p * v[c];
  }
}

}  // namespace
}  // namespace attention

size_t attend_standard_scratch_bytes(const tensor::KvLayout& layout, size_t context) {
  return (context * (size_t{layout.key_dim} + layout.value_dim + 1) + layout.key_dim) * sizeof(float);
}

void attend_standard(const AttendArgs& args, const AttentionKernels& codec) {
  const tensor::KvLayout& l = *args.kv.layout;
  const size_t origin = attention::first_visible(args.position, args.window),
               end = args.position + args.tokens;
  const attention::Context ctx = attention::carve(l, end - origin, args.scratch);
  for (size_t p = origin; p < end; ++p)
    codec.load(args.kv, p, args.kv_head, ctx.keys + (p - origin) * l.key_dim,
               ctx.values + (p - origin) * l.value_dim);
  for (size_t i = 0; i < args.tokens; ++i) {
    const float* q = args.q + i * args.q_stride;
    float* out = args.out + i * args.out_stride;
    if (!attention::all_finite(q, args.group * l.key_dim)) {
      if (args.nonfinite != nullptr) args.nonfinite[i] = 1;
      for (size_t c = 0; c < args.group * l.value_dim; ++c) out[c] = 0;
      continue;
    }
    for (size_t g = 0; g < args.group; ++g) {
      for (size_t c = 0; c < l.key_dim; ++c) ctx.query[c] = q[g * l.key_dim + c];
      if (codec.codec == tensor::KvCodec::kInt8)
        attention::rotate(ctx.query, l.key_dim);  // its keys are rotated
      const attention::RowBias bias = {.slope = args.alibi == nullptr ? nullptr : args.alibi + g,
                                       .sink = args.sinks == nullptr ? nullptr : args.sinks + g};
      attention::standard_row(args, ctx, origin, args.position + i, bias, out + g * l.value_dim);
    }
  }
}

}  // namespace tally::kernels
