// The definition: one row at a time, one position at a time, in the order of the formulas in attention.h.
// Every other form must give these bits.
#include "kernels/attention/arithmetic.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/codec.h"
#include "kernels/attention/cut.h"

namespace tally::kernels::attention {
namespace {

using tensor::KvLayout;

// The query of one row, as the codec wants it.
struct Query {
  const float* values = nullptr;   // [key_columns], f32 and bf16
  const int8_t* quants = nullptr;  // [key_columns], int8 and nibbles
  float scale = 0;                 // of a dot product, to base-2 scores; times the key's scale for int8
  Softcap cap;
  size_t position = 0;
  float slope = 0;  // of ALiBi, to base 2, if `distance_counts`
  bool distance_counts = false;
  const float* sink = nullptr;  // nullptr: none
};

// What the visible positions [first, end) of one group say: exponents and their sum.
struct Group {
  size_t first, end;     // positions
  float max = kNoScore;  // mg
  float e[kGroupTokens] = {};
  float sum = 0;  // lg

  size_t origin() const { return first / kGroupTokens * kGroupTokens; }
};

// ---- Scores: what a key says to a query, to base 2
// -----------------------------------------------------------

struct F32Keys {
  static float score(const KvLayout& l, TokenPlace at, const Query& q) {
    const auto* keys = reinterpret_cast<const float*>(at.head_block);
    float s = 0;
    for (size_t c = 0; c < l.key_columns; ++c)
      s = __builtin_fmaf(q.values[c], keys[key_index_f32(l.key_columns, at.token, c)], s);
    return s * q.scale;
  }
};

struct Bf16Keys {
  static float score(const KvLayout& l, TokenPlace at, const Query& q) {
    const auto* keys = reinterpret_cast<const uint16_t*>(at.head_block);
    float s = 0;
    for (size_t c = 0; c < l.key_columns; ++c)
      s = __builtin_fmaf(q.values[c], f32_from_bf16(keys[key_index_bf16(l.key_columns, at.token, c)]), s);
    return s * q.scale;
  }
};

struct Int8Keys {
  static float score(const KvLayout& l, TokenPlace at, const Query& q) {
    const auto* keys = reinterpret_cast<const uint8_t*>(at.head_block);
    int32_t dot = 0;
    for (size_t c = 0; c < l.key_columns; ++c)
      dot += q.quants[c] * (keys[key_index_int8(l.key_columns, at.token, c)] - 128);
    return static_cast<float>(dot) * (key_scales(l, at.head_block)[at.token] * q.scale);
  }
};

struct NibbleKeys {
  static float score(const KvLayout& l, TokenPlace at, const Query& q) {
    const auto* keys = reinterpret_cast<const uint8_t*>(at.head_block);
    const NibbleScale* scales = key_nibble_scales(l, at.head_block) + at.token;
    float s = 0;
    for (size_t first = 0; first < l.key_columns; first += kNibbles, scales += l.block_tokens) {
      int32_t dot = 0, sum = 0;
      for (size_t c = first; c < first + kNibbles; ++c) {
        const uint8_t byte = keys[key_index_nibble(l.key_columns, at.token, c)];
        dot += q.quants[c] * (key_nibble_is_high(c) ? byte >> 4 : byte & 0x0f);
        sum += q.quants[c];
      }
      s = __builtin_fmaf(f32_from_f16(scales->step), static_cast<float>(dot), s);
      s = __builtin_fmaf(f32_from_f16(scales->low), static_cast<float>(sum), s);
    }
    return s * q.scale;
  }
};

// ---- Weighted sums of a group's values, times cg = 2^(mg - m'): out [value_columns]
// --------------------------

template <class Codec>
struct FloatValues {
  static void weigh(const KvSequence& kv, size_t head, const Group& g, float cg, float* out) {
    float sum[kDimMax] = {};
    const size_t columns = kv.layout->value_columns;
    for (size_t j = g.first; j < g.end; ++j) {
      const TokenPlace at = token_place(kv, j, head);
      for (size_t c = 0; c < columns; ++c)
        sum[c] = __builtin_fmaf(g.e[j - g.origin()], Codec::value(*kv.layout, at, c), sum[c]);
    }
    for (size_t c = 0; c < columns; ++c) out[c] = sum[c] * cg;
  }
};
struct F32Values : FloatValues<F32Values> {
  static float value(const KvLayout& l, TokenPlace at, size_t c) {
    const auto* values = reinterpret_cast<const float*>(at.head_block + l.value_offset);
    return values[value_index_f32(l.value_columns, at.token, c)];
  }
};
struct Bf16Values : FloatValues<Bf16Values> {
  static float value(const KvLayout& l, TokenPlace at, size_t c) {
    const auto* values = reinterpret_cast<const uint16_t*>(at.head_block + l.value_offset);
    return f32_from_bf16(values[value_index_bf16(l.value_columns, at.token, c)]);
  }
};

// 15-bit weights p of a group, from w [kGroupTokens]; returns what a sum of them is multiplied by.
float weights_of(const float* w, int32_t* p) {
  float most = kWeightMin;
  for (size_t j = 0; j < kGroupTokens; ++j) most = w[j] > most ? w[j] : most;
  const float r = kWeightMax / most;
  for (size_t j = 0; j < kGroupTokens; ++j) p[j] = static_cast<int32_t>(__builtin_lrintf(w[j] * r));
  return most * kWeightUnit;
}

struct Int8Values {
  static void weigh(const KvSequence& kv, size_t head, const Group& g, float cg, float* out) {
    const KvLayout& l = *kv.layout;
    float w[kGroupTokens] = {};
    for (size_t j = g.first; j < g.end; ++j) {
      const TokenPlace at = token_place(kv, j, head);
      w[j - g.origin()] = g.e[j - g.origin()] * value_scales(l, at.head_block)[at.token];
    }
    int32_t p[kGroupTokens], sum[kDimMax] = {};
    const float scale = weights_of(w, p) * cg;
    for (size_t j = g.first; j < g.end; ++j) {
      const TokenPlace at = token_place(kv, j, head);
      const auto* values = reinterpret_cast<const int8_t*>(at.head_block + l.value_offset);
      for (size_t c = 0; c < l.value_columns; ++c)
        sum[c] += p[j - g.origin()] * values[value_index_int8(l.value_columns, at.token, c)];
    }
    for (size_t c = 0; c < l.value_columns; ++c) out[c] = static_cast<float>(sum[c]) * scale;
  }
};

struct NibbleValues {
  static void weigh(const KvSequence& kv, size_t head, const Group& g, float cg, float* out) {
    for (size_t first = 0; first < kv.layout->value_columns; first += kNibbles)
      weigh_columns(kv, head, g, cg, first, out + first);
  }

 private:
  // The 32 columns from `first` on: their values have steps and lows of their own, so weights of their own.
  static void weigh_columns(const KvSequence& kv, size_t head, const Group& g, float cg, size_t first,
                            float* out) {
    const KvLayout& l = *kv.layout;
    float w[kGroupTokens] = {}, low[kGroupTokens] = {};
    for (size_t j = g.first; j < g.end; ++j) {
      const TokenPlace at = token_place(kv, j, head);
      const NibbleScale scale =
          value_nibble_scales(l, at.head_block)[first / kNibbles * l.block_tokens + at.token];
      w[j - g.origin()] = g.e[j - g.origin()] * f32_from_f16(scale.step);
      low[j - g.origin()] = f32_from_f16(scale.low);
    }
    int32_t p[kGroupTokens], sum[kNibbles] = {};
    const float scale = weights_of(w, p) * cg, from = tree_dot(g.e, low) * cg;
    for (size_t j = g.first; j < g.end; ++j) {
      const TokenPlace at = token_place(kv, j, head);
      const auto* values = reinterpret_cast<const uint8_t*>(at.head_block + l.value_offset);
      for (size_t c = first; c < first + kNibbles; ++c) {
        const uint8_t byte = values[value_index_nibble(l.value_columns, at.token, c)];
        sum[c - first] += p[j - g.origin()] * (value_nibble_is_high(c) ? byte >> 4 : byte & 0x0f);
      }
    }
    for (size_t c = 0; c < kNibbles; ++c) out[c] = __builtin_fmaf(static_cast<float>(sum[c]), scale, from);
  }
};

template <class KeysOf, class ValuesOf, bool kInteger>
struct Codec {
  using Keys = KeysOf;
  using Values = ValuesOf;
  static constexpr bool kIntegerQuery = kInteger;
};

template <class Codec>
Group score_group(const KvSequence& kv, size_t head, const Query& q, size_t first, size_t end) {
  Group g{.first = first, .end = end};
  const size_t origin = g.origin();
  float s[kGroupTokens] = {};
  for (size_t j = first; j < end; ++j) {
    float x = Codec::Keys::score(*kv.layout, token_place(kv, j, head), q);
    if (q.cap.limit != 0) x = apply_softcap(x, q.cap);
    if (q.distance_counts) x = __builtin_fmaf(q.slope, distance(j, q.position), x);
    s[j - origin] = x;
    g.max = x > g.max ? x : g.max;
  }
  for (size_t j = first - origin; j < end - origin; ++j) g.e[j] = exp2_nonpositive(s[j] - g.max);
  g.sum = tree_sum(g.e);
  return g;
}

// The softmax state of a span or of all spans so far.
struct State {
  float max, sum;  // m, l
  float* out;      // O [value_dim]
};

// The state of the visible positions [at, end) of one span.
template <class Codec>
void attend_span(const AttendArgs& args, const Query& q, size_t at, size_t end, State& span) {
  const size_t dim = args.kv.layout->value_dim, head = args.kv_head;
  span.max = kNoScore, span.sum = 0;
  for (size_t c = 0; c < dim; ++c) span.out[c] = 0;
  while (at < end) {
    const size_t group_end = (at / kGroupTokens + 1) * kGroupTokens;
    const size_t stop = group_end < end ? group_end : end;
    const Group g = score_group<Codec>(args.kv, head, q, at, stop);
    const float max = g.max > span.max ? g.max : span.max;
    const float cr = exp2_nonpositive(span.max - max), cg = exp2_nonpositive(g.max - max);
    span.sum = __builtin_fmaf(span.sum, cr, g.sum * cg);
    span.max = max;
    float group_out[kDimMax];
    Codec::Values::weigh(args.kv, head, g, cg, group_out);
    for (size_t c = 0; c < dim; ++c) span.out[c] = __builtin_fmaf(span.out[c], cr, group_out[c]);
    at = stop;
  }
}

void merge_span(size_t dim, const State& span, bool first, State& total) {
  if (first) {
    total.max = span.max, total.sum = span.sum;
    for (size_t c = 0; c < dim; ++c) total.out[c] = span.out[c];
    return;
  }
  const float max = span.max > total.max ? span.max : total.max;
  const float ca = exp2_nonpositive(total.max - max), cb = exp2_nonpositive(span.max - max);
  total.sum = __builtin_fmaf(total.sum, ca, span.sum * cb);
  total.max = max;
  for (size_t c = 0; c < dim; ++c) total.out[c] = __builtin_fmaf(total.out[c], ca, span.out[c] * cb);
}

void finish_row(const KvLayout& l, const float* sink, State& total, float* out) {
  const size_t dim = l.value_dim;
  if (sink != nullptr) {
    const float keep = join_sink(*sink, &total.max, &total.sum);
    for (size_t c = 0; c < dim; ++c) total.out[c] = total.out[c] * keep;
  }
  const float inverse = 1.f / total.sum;
  for (size_t c = 0; c < dim; ++c) out[c] = total.out[c] * inverse;
  if (rotates_values(l.codec)) rotate(out, dim);
}

// Calls visit(first, end) with what [first, end) has of each span.
template <class Visit>
void each_span(PositionRange range, const Visit& visit) {
  for (size_t at = range.first; at < range.end;) {
    const size_t span_end = (at / kSpanTokens + 1) * kSpanTokens;
    const size_t stop = span_end < range.end ? span_end : range.end;
    visit(at, stop);
    at = stop;
  }
}

PositionRange seen_from(const AttendArgs& args, size_t position) {
  return {first_visible(position, args.window), position + 1};
}

// span_out, total_out [value_dim]: working memory.
template <class Codec>
void attend_row(const AttendArgs& args, const Query& q, float* span_out, float* total_out, float* out) {
  const size_t dim = args.kv.layout->value_dim;
  const PositionRange seen = seen_from(args, q.position);
  State span{.max = 0, .sum = 0, .out = span_out}, total{.max = 0, .sum = 0, .out = total_out};
  each_span(seen, [&](size_t at, size_t end) {
    attend_span<Codec>(args, q, at, end, span);
    merge_span(dim, span, at == seen.first, total);
  });
  finish_row(*args.kv.layout, q.sink, total, out);
}

// The same in a part of a cut call; `row` counts the rows of the call.
template <class Codec>
void attend_part_of_row(const AttendArgs& args, const Query& q, size_t row, float* span_out) {
  each_span(positions_of_part(args, seen_from(args, q.position)), [&](size_t at, size_t end) {
    State span{.max = 0, .sum = 0, .out = span_out};
    attend_span<Codec>(args, q, at, end, span);
    const SpanState to = kept_state(args, at / kSpanTokens, row);
    *to.max = span.max, *to.sum = span.sum;
    for (size_t c = 0; c < args.kv.layout->value_dim; ++c) to.out[c] = span.out[c];
  });
}

void refuse_part_of_row(const AttendArgs& args, size_t position, size_t row) {
  each_span(positions_of_part(args, seen_from(args, position)),
            [&](size_t at, size_t) { *kept_state(args, at / kSpanTokens, row).sum = 0; });
}

// The last call of a cut one.
void merge_parts(const AttendArgs& args) {
  const size_t dim = args.kv.layout->value_dim;
  float* total_out = reinterpret_cast<float*>(args.scratch);
  for (size_t row = 0; row < args.tokens * args.group; ++row) {
    const size_t token = row / args.group, head = row % args.group;
    const PositionRange seen = seen_from(args, args.position + token);
    float* out = args.out + token * args.out_stride + head * dim;
    if (*kept_state(args, seen.first / kSpanTokens, row).sum == 0) {
      for (size_t c = 0; c < dim; ++c) out[c] = 0;
      continue;
    }
    State total{.max = 0, .sum = 0, .out = total_out};
    each_span(seen, [&](size_t at, size_t) {
      const SpanState kept = kept_state(args, at / kSpanTokens, row);
      merge_span(dim, {.max = *kept.max, .sum = *kept.sum, .out = kept.out}, at == seen.first, total);
    });
    finish_row(*args.kv.layout, args.sinks == nullptr ? nullptr : args.sinks + head, total, out);
  }
}

// Makes the query of one head; false if it is not finite, rotated or not. `values` [key_columns], `quants`
// [key_columns].
template <class Codec>
bool make_query(const AttendArgs& args, const float* head_q, float* values, int8_t* quants, Query& q) {
  const KvLayout& l = *args.kv.layout;
  for (size_t c = 0; c < l.key_columns; ++c) values[c] = c < l.key_dim ? head_q[c] : 0.f;
  q = {.values = values,
       .quants = quants,
       .scale = base2_scale(args.score_scale),
       .cap = make_softcap(args.softcap)};
  if (!all_finite(values, l.key_dim)) return false;
  if constexpr (Codec::kIntegerQuery) {
    rotate(values, l.key_dim);
    if (!all_finite(values, l.key_dim)) return false;
    q.scale = quantize_127(values, l.key_columns, quants) * q.scale;
  }
  return true;
}

template <class Codec>
void attend(const AttendArgs& args) {
  if (is_merge(args)) return merge_parts(args);
  const KvLayout& l = *args.kv.layout;
  float* values = reinterpret_cast<float*>(args.scratch);
  float* span_out = values + l.key_columns;
  float* total_out = span_out + l.value_columns;
  auto* quants = reinterpret_cast<int8_t*>(total_out + l.value_columns);
  for (size_t i = 0; i < args.tokens; ++i) {
    const float* token_q = args.q + i * args.q_stride;
    float* token_out = args.out + i * args.out_stride;
    Query q;
    bool finite = true;
    for (size_t g = 0; g < args.group; ++g)
      finite = make_query<Codec>(args, token_q + g * l.key_dim, values, quants, q) && finite;
    if (!finite) {
      if (args.nonfinite != nullptr) args.nonfinite[i] = 1;
      if (args.cut == nullptr)
        for (size_t c = 0; c < args.group * l.value_dim; ++c) token_out[c] = 0;
      else
        for (size_t g = 0; g < args.group; ++g)
          refuse_part_of_row(args, args.position + i, i * args.group + g);
      continue;
    }
    for (size_t g = 0; g < args.group; ++g) {
      make_query<Codec>(args, token_q + g * l.key_dim, values, quants, q);
      q.position = args.position + i;
      if (args.alibi != nullptr) q.distance_counts = true, q.slope = alibi_slope(args.alibi[g]);
      if (args.sinks != nullptr) q.sink = args.sinks + g;
      if (args.cut == nullptr)
        attend_row<Codec>(args, q, span_out, total_out, token_out + g * l.value_dim);
      else
        attend_part_of_row<Codec>(args, q, i * args.group + g, span_out);
    }
  }
}

}  // namespace
}  // namespace tally::kernels::attention

namespace tally::kernels {

void attend_f32_scalar(const AttendArgs& args) {
  attention::attend<attention::Codec<attention::F32Keys, attention::F32Values, false>>(args);
}
void attend_bf16_scalar(const AttendArgs& args) {
  attention::attend<attention::Codec<attention::Bf16Keys, attention::Bf16Values, false>>(args);
}
void attend_int8_scalar(const AttendArgs& args) {
  attention::attend<attention::Codec<attention::Int8Keys, attention::Int8Values, true>>(args);
}
void attend_k8v4_scalar(const AttendArgs& args) {
  attention::attend<attention::Codec<attention::Int8Keys, attention::NibbleValues, true>>(args);
}
void attend_int4_scalar(const AttendArgs& args) {
  attention::attend<attention::Codec<attention::NibbleKeys, attention::NibbleValues, true>>(args);
}

}  // namespace tally::kernels
