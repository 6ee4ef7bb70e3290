#include "kernels/encode/encode.h"
#include "kernels/q8_0/codes.h"

namespace tally::kernels {
namespace {

constexpr LinearVariant kVariants[] = {
#define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, symbol},
#include "kernels/q8_0/variants.inc"
#undef TALLY_VARIANT
};

size_t group_bytes(size_t k) { return k / 32 * 2 * kQ8_0Unit; }

void pack(const std::byte* rows, size_t row_count, size_t k, std::byte* group) {
  pack_blocks<tensor::BlockQ8_0>(rows, row_count, k, group, kQ8_0Unit,
                                 [](const tensor::BlockQ8_0& block, std::byte* unit, size_t r) {
                                   for (size_t i = 0; i < 32; ++i)
                                     unit[byte_offset(r, i)] = static_cast<std::byte>(block.q[i] + 128);
                                   put_u16(unit, kQ8_0Scale, r, block.d);
                                 });
}

void unpack_row(const std::byte* group, size_t lane, size_t k, float* out) {
  for (size_t b = 0; b < k / 32; ++b) expand(q8_0_codes(group, lane, b), out + 32 * b);
}

void dequantize(const std::byte* row, size_t k, float* out) {
  for (size_t b = 0; b < k / 32; ++b) {
    tensor::BlockQ8_0 block;
    std::memcpy(&block, row + b * sizeof block, sizeof block);
    const float d = tensor::f16_to_f32(block.d);
    for (size_t i = 0; i < 32; ++i) out[32 * b + i] = d * static_cast<float>(block.q[i]);
  }
}

}  // namespace

LinearFamily q8_0_family() {
  return {{.type = tensor::DType::kQ8_0,
           .panel = PanelKind::kInt32,
           .block = 32,
           .group_bytes = group_bytes,
           .pack = pack,
           .unpack_row = unpack_row,
           .dequantize = dequantize,
           .encode = encode_q8_0,
           .run = nullptr,
           .isa = Isa::kScalar},
          kVariants};
}

}  // namespace tally::kernels
