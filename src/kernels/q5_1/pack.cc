#include "kernels/encode/encode.h"
#include "kernels/q5_1/codes.h"

namespace tally::kernels {
namespace {

constexpr LinearVariant kVariants[] = {
#define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, symbol},
#include "kernels/q5_1/variants.inc"
#undef TALLY_VARIANT
};

int high_bit(const tensor::BlockQ5_1& block, size_t i) { return (block.h[i / 8] >> (i % 8)) & 1; }

size_t group_bytes(size_t k) { return k / 32 * 2 * kQ5_1Unit; }

void pack(const std::byte* rows, size_t row_count, size_t k, std::byte* group) {
  pack_blocks<tensor::BlockQ5_1>(
      rows, row_count, k, group, kQ5_1Unit, [](const tensor::BlockQ5_1& block, std::byte* unit, size_t r) {
        for (size_t i = 0; i < 16; ++i) {
          // The file pairs the same nibbles: elements i and i + 16.
          unit[nibble_offset(r, i)] = std::byte{block.q[i]};
          const int bits = high_bit(block, i) | high_bit(block, i + 16) << 4;
          unit[kQ5_1High + 4 * r + i % 4] |= static_cast<std::byte>(bits << (i / 4));
        }
        put_u16(unit, kQ5_1Scale, r, block.d);
        put_u16(unit, kQ5_1Min, r, block.m);
      });
}

void unpack_row(const std::byte* group, size_t lane, size_t k, float* out) {
  for (size_t b = 0; b < k / 32; ++b) expand_with_min(q5_1_codes(group, lane, b), out + 32 * b);
}

void dequantize(const std::byte* row, size_t k, float* out) {
  for (size_t b = 0; b < k / 32; ++b) {
    tensor::BlockQ5_1 block;
    std::memcpy(&block, row + b * sizeof block, sizeof block);
    const float d = tensor::f16_to_f32(block.d), m = tensor::f16_to_f32(block.m);
    for (size_t i = 0; i < 32; ++i) {
      const int code = ((block.q[i % 16] >> 4 * (i / 16)) & 15) | high_bit(block, i) << 4;
      out[32 * b + i] = d * static_cast<float>(code) + m;
    }
  }
}

}  // namespace

LinearFamily q5_1_family() {
  return {{.type = tensor::DType::kQ5_1,
           .panel = PanelKind::kInt32,
           .block = 32,
           .group_bytes = group_bytes,
           .pack = pack,
           .unpack_row = unpack_row,
           .dequantize = dequantize,
           .encode = encode_q5_1,
           .run = nullptr,
           .isa = Isa::kScalar},
          kVariants};
}

}  // namespace tally::kernels
