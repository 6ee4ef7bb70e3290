#pragma once
// What the forms know of a cut call (AttendCut): the positions of a part, and where the states of its spans
// are kept. Internal linkage: included by objects of every ISA.

#include "kernels/attention/arithmetic.h"
#include "kernels/kernels.h"

namespace tally::kernels::attention {

// The softmax state of a row after one span alone. A row whose token is refused has a sum of 0: no other has.
struct SpanState {
  float* max;
  float* sum;
  float* out;  // [value_dim]
};
constexpr size_t kStateHead = 2;  // max and sum come first

// `row` counts the rows of the whole call, token-major.
static inline SpanState kept_state(const AttendArgs& args, size_t span, size_t row) {
  const size_t floats = kStateHead + args.kv.layout->value_dim;
  const AttendCut::Shared& shared = args.cut->shared;
  size_t rows = args.tokens * args.group;
  float* at = args.cut->states;
  if (span < shared.spans) {
    at = shared.states, rows = shared.tokens * args.group, row += shared.token * args.group;
  } else {
    const size_t first_span = first_visible(args.position, args.window) / kSpanTokens;
    span -= first_span > shared.spans ? first_span : shared.spans;
  }
  at += (span * rows + row) * floats;
  return {at, at + 1, at + kStateHead};
}

static inline bool is_merge(const AttendArgs& args) { return args.cut != nullptr && args.cut->merge; }

struct PositionRange {
  size_t first, end;
};
// [first, end) as far as this part goes; first >= end: nothing of it.
static inline PositionRange positions_of_part(const AttendArgs& args, PositionRange seen) {
  if (args.cut == nullptr) return seen;
  const size_t begin = args.cut->span_begin * kSpanTokens, end = args.cut->span_end * kSpanTokens;
  return {seen.first > begin ? seen.first : begin, seen.end < end ? seen.end : end};
}

}  // namespace tally::kernels::attention
