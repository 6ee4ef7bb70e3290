#include "kernels/encode/encode.h"
#include "kernels/q4_1/codes.h"

namespace tally::kernels {
namespace {

constexpr LinearVariant kVariants[] = {
#define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, symbol},
#include "kernels/q4_1/variants.inc"
#undef TALLY_VARIANT
};

size_t group_bytes(size_t k) { return k / 32 * 2 * kQ4_1Unit; }

void pack(const std::byte* rows, size_t row_count, size_t k, std::byte* group) {
  pack_blocks<tensor::BlockQ4_1>(rows, row_count, k, group, kQ4_1Unit,
                                 [](const tensor::BlockQ4_1& block, std::byte* unit, size_t r) {
                                   // The file pairs the same nibbles: elements i and i + 16.
                                   for (size_t i = 0; i < 16; ++i)
                                     unit[nibble_offset(r, i)] = std::byte{block.q[i]};
                                   put_u16(unit, kQ4_1Scale, r, block.d);
                                   put_u16(unit, kQ4_1Min, r, block.m);
                                 });
}

void unpack_row(const std::byte* group, size_t lane, size_t k, float* out) {
  for (size_t b = 0; b < k / 32; ++b) expand_with_min(q4_1_codes(group, lane, b), out + 32 * b);
}

void dequantize(const std::byte* row, size_t k, float* out) {
  for (size_t b = 0; b < k / 32; ++b) {
    tensor::BlockQ4_1 block;
    std::memcpy(&block, row + b * sizeof block, sizeof block);
    const float d = tensor::f16_to_f32(block.d), m = tensor::f16_to_f32(block.m);
    for (size_t i = 0; i < 32; ++i)
      out[32 * b + i] = d * static_cast<float>((block.q[i % 16] >> 4 * (i / 16)) & 15) + m;
  }
}

}  // namespace

LinearFamily q4_1_family() {
  return {{.type = tensor::DType::kQ4_1,
           .panel = PanelKind::kInt32,
           .block = 32,
           .group_bytes = group_bytes,
           .pack = pack,
           .unpack_row = unpack_row,
           .dequantize = dequantize,
           .encode = encode_q4_1,
           .run = nullptr,
           .isa = Isa::kScalar},
          kVariants};
}

}  // namespace tally::kernels
