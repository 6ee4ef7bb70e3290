#include "kernels/attention/attention.h"

#include "base/check.h"
#include "kernels/attention/cut.h"
#include "kernels/attention/tile.h"
#include "kernels/linear.h"

namespace tally::kernels {
namespace attention {
namespace {

constexpr Form kForms[] = {
#define TALLY_ATTENTION_FORM(codec, isa, store, attend) {tensor::KvCodec::codec, Isa::isa, store, attend},
#include "kernels/attention/variants.inc"
#undef TALLY_ATTENTION_FORM
};

auto load_of(tensor::KvCodec codec) {
  switch (codec) {
    case tensor::KvCodec::kF32:
      return load_f32;
    case tensor::KvCodec::kBf16:
      return load_bf16;
    case tensor::KvCodec::kInt8:
      return load_int8;
    case tensor::KvCodec::kK8V4:
      return load_k8v4;
    case tensor::KvCodec::kInt4:
      return load_int4;
  }
  TALLY_UNREACHABLE("KV codec");
}

}  // namespace

std::span<const Form> forms() { return kForms; }

}  // namespace attention

AttentionKernels select_attention(tensor::KvCodec codec, Isa isa) {
  for (const attention::Form& f : attention::forms())
    if (f.codec == codec && f.isa <= isa && host_has(f.isa))
      return {.codec = codec,
              .store = f.store,
              .attend = f.attend,
              .load = attention::load_of(codec),
              .isa = f.isa};
  TALLY_UNREACHABLE("a codec without a scalar form");
}

SpanRange attend_spans(size_t position, size_t tokens, size_t window) {
  return {attention::first_visible(position, window) / kSpanTokens,
          (position + tokens - 1) / kSpanTokens + 1};
}

size_t attend_state_floats(size_t value_dim) { return attention::kStateHead + value_dim; }

// One size for every form of every codec: the tile's (the scalar form needs less).
size_t attend_scratch_bytes(const tensor::KvLayout& layout, size_t group) {
  return attention::tile_memory(layout, group, nullptr).bytes;
}

}  // namespace tally::kernels
