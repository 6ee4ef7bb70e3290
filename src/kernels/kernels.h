#pragma once
// Math on pointers. A table of plain function pointers, const after start, passed, never global. No kernel allocates, throws,
// logs or starts threads; each handles a range, the caller parallelises. Every variant of an entry equals the scalar one by
// memcmp (Law 1); callers have called set_float_mode() on their thread.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/isa.h"
#include "kernels/route/route.h"
#include "kernels/vector_kernels.h"
#include "tensor/kv_layout.h"
#include "tensor/tensor.h"

namespace tally::kernels {

// ---- Linear: y[t][r] = sum over k of w[r][k] * x[t][k] -----------------------------------------------------------------------

// Rows are packed in groups of 32 (two of 16 alternating), padded with zero codes and zero scales.
inline constexpr size_t kGroupRows = 32;
// Readable bytes a kernel may prefetch behind the last group of an arena.
inline constexpr size_t kTailPadding = 65536;

// How activations are laid out for a weight format. One panel serves every matrix of its kind with the same input.
enum class PanelKind : uint8_t {
  kF32,      // f32 as they are
  kInt32,    // int8, one scale per 32 values, and the sum of the 32
  kInt256,   // int8, one scale per 256 values, sums per 16 and per 32
};
inline constexpr size_t kPanelKinds = 3;

// Makes the panel rows [token_begin, token_end) of x. The layout is private to the linear kernels.
// Shapes: x [tokens][x_stride] f32, k of them used; panel of panel_bytes(kind, tokens, k), 64-byte aligned.
// Requires: k is a multiple of the kind's block (1, 32, 256). Ranges of different calls may share no multiple of 16 tokens.
// Ensures: q in [-127, 127]; d = amax / 127; q = rne(x * (127 / amax)); d = q = 0 if amax < 1e-30.
//   nonfinite[t] = 1 if row t holds an infinity or NaN (else untouched); such a row's panel is all zero.
struct PanelArgs {
  const float* x = nullptr;
  size_t x_stride = 0;
  size_t tokens = 0, k = 0;
  size_t token_begin = 0, token_end = 0;
  std::byte* panel = nullptr;
  uint8_t* nonfinite = nullptr;  // [tokens]
};
using PanelFn = void (*)(const PanelArgs&);
size_t panel_bytes(PanelKind kind, size_t tokens, size_t k);
size_t panel_block(PanelKind kind);  // 1, 32 or 256

// How a kernel walks memory: never what it computes. Chosen by measurement (tune.h).
struct LinearTuning {
  uint32_t prefetch_bytes = 4096;       // ahead of its use a weight is asked for; 0: not at all
  uint32_t chunk_bytes = 256u << 10;    // of the panel that stays in L2 while all groups of the call pass under it
};

// Computes row groups [group_begin, group_end) for all tokens of the panel.
// Shapes: weights = packed matrix from its first group; out [tokens][out_stride] f32, element [t][r] for r < rows.
// Ensures: one f32 accumulator a (row, token), blocks in ascending k; nothing else of `out` is written.
struct LinearArgs {
  const std::byte* weights = nullptr;
  size_t rows = 0, k = 0;
  const std::byte* panel = nullptr;
  size_t tokens = 0;
  float* out = nullptr;
  size_t out_stride = 0;
  size_t group_begin = 0, group_end = 0;
  LinearTuning tuning{};
};
using LinearFn = void (*)(const LinearArgs&);

// A weight type: how it is packed, unpacked and multiplied.
struct LinearFormat {
  tensor::DType type;
  PanelKind panel;
  uint32_t block;  // k must be a multiple of it
  // Bytes of one packed group of 32 rows.
  size_t (*group_bytes)(size_t k);
  // Packs `row_count` (1..32) consecutive rows of GGUF data, the rest of the group is zero.
  void (*pack)(const std::byte* rows, size_t row_count, size_t k, std::byte* group);
  // Row `lane` (0..31) of a packed group as f32: the same bits as dequantize.
  void (*unpack_row)(const std::byte* group, size_t lane, size_t k, float* out);
  // One row of GGUF data as f32.
  void (*dequantize)(const std::byte* row, size_t k, float* out);
  // f32 values as GGUF data (encode/); nullptr: no encoder. Runs in IEEE mode, keeping denormals, and gives the same bytes
  // whatever the machine. Returns false, `row` then being unspecified, if a value is not finite or beyond the type's range.
  bool (*encode)(const float* x, size_t k, std::byte* row) = nullptr;
  LinearFn run;
  Isa isa;  // the variant that was chosen
  LinearTuning tuning{};
};

// ---- Vectors and the router of experts: vector_kernels.h, route/route.h -----------------------------------------------------

// ---- Attention over the paged KV cache ---------------------------------------------------------------------------------------

// One sequence's cache in one layer.
struct KvSequence {
  const tensor::KvLayout* layout = nullptr;
  std::byte* layer = nullptr;      // block 0 of the layer; block b is at b * layout->block_bytes
  const uint32_t* table = nullptr;  // position p lives in block table[p / block_tokens]
};

// Encodes k and v of one token for all KV heads.
// Shapes: k [kv_heads][key_dim], v [kv_heads][value_dim] f32. Returns false, storing zeros, if a value is not finite.
using KvStoreFn = bool (*)(const KvSequence& kv, size_t position, const float* k, const float* v);

// Softmax states are made a span at a time, by absolute position, and merged in ascending order.
inline constexpr size_t kSpanTokens = 1024;
struct SpanRange {
  size_t begin = 0, end = 0;
};
// The spans that any of `tokens` rows from `position` on sees.
SpanRange attend_spans(size_t position, size_t tokens, size_t window);

// Makes a call of AttendArgs one part of a whole: the parts' spans cover those the rows see, once each, and parts may run on
// several threads. When all are done, one more call merges what they left and writes `out`.
// Ensures: the bits of the call that is not cut, wherever the cuts are.
struct AttendCut {
  float* states = nullptr;  // [spans of attend_spans(args) that are not shared][tokens * group][attend_state_floats(value_dim)]
  size_t span_begin = 0, span_end = 0;  // of this part
  bool merge = false;                   // the last call; it has no spans
  // Where another cut call left the states of spans 0 .. spans - 1, of which this call has no part: it attended `tokens`
  // tokens of sequences that have the same blocks there, and the first of this call was its `token`. Without window and ALiBi.
  struct Shared {
    float* states = nullptr;
    size_t spans = 0, tokens = 0, token = 0;
  } shared{};
};
size_t attend_state_floats(size_t value_dim);

// Attends `tokens` consecutive positions of one sequence, the G = group query heads of one KV head.
// Token i sits at position + i and sees positions max(0, p - window + 1) .. p (window 0: all before it).
// Shapes: q [tokens][q_stride], head g of the group at g * key_dim; out [tokens][out_stride], head g at g * value_dim.
// nonfinite[i] = 1 if token i's q is not finite (its out is zero).
struct AttendArgs {
  KvSequence kv;
  size_t kv_head = 0, group = 1;
  const float* q = nullptr;
  size_t q_stride = 0;
  size_t tokens = 0, position = 0;
  size_t window = 0;
  float score_scale = 1, softcap = 0;  // softcap 0: none
  // [group] or none. ALiBi slopes m, |m * position| < 1e30: score += m * (key position - query position), behind the cap.
  const float* alibi = nullptr;
  const float* sinks = nullptr;  // [group] or none: logits that join the softmax's denominator only
  float* out = nullptr;
  size_t out_stride = 0;
  std::byte* scratch = nullptr;  // attend_scratch_bytes(layout, group), 64-byte aligned
  uint8_t* nonfinite = nullptr;  // [tokens]
  const AttendCut* cut = nullptr;  // none: the whole call
};
using AttendFn = void (*)(const AttendArgs&);
size_t attend_scratch_bytes(const tensor::KvLayout& layout, size_t group);

struct AttentionKernels {
  tensor::KvCodec codec;
  KvStoreFn store;
  AttendFn attend;
  // Reads one token back as f32: k [key_dim] (rotated if the codec rotates) and v [value_dim] of one head. For tests.
  void (*load)(const KvSequence& kv, size_t position, size_t kv_head, float* k, float* v);
  Isa isa;
};

// A part of the score matrix [heads][rows][context] f32 in memory: rows of one head, and heads, lie so many floats apart.
struct ScoreMatrix {
  float* scores = nullptr;
  size_t head_stride = 0, row_stride = 0;
};

// The textbook form over any codec's decoded cache: all scores of the call into memory, a softmax of each row, weighted
// sums; the baseline of `--attention standard`. Rows of `matrix` hold position + tokens floats or more.
// Scratch: attend_standard_scratch_bytes.
void attend_standard(const AttendArgs& args, const AttentionKernels& codec, const ScoreMatrix& matrix);
size_t attend_standard_scratch_bytes(const tensor::KvLayout& layout, size_t context);

// ---- The table ---------------------------------------------------------------------------------------------------------------

// F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K IQ4_NL IQ4_XS MXFP4
inline constexpr size_t kLinearFormats = 16;

struct KernelTable {
  Isa isa;  // asked for; each family says what it found
  std::array<PanelFn, kPanelKinds> panel;
  std::array<LinearFormat, kLinearFormats> linear;
  VectorKernels vector;
  std::array<AttentionKernels, std::size(tensor::kKvCodecs)> attention;

  const LinearFormat* find_linear(tensor::DType type) const;  // nullptr: no kernel for this weight type
  const AttentionKernels& attention_for(tensor::KvCodec codec) const { return attention[static_cast<size_t>(codec)]; }
};

// Fills each family with its best variant not above `isa`. Requires host_has(isa).
KernelTable kernel_table(Isa isa);

}  // namespace tally::kernels
