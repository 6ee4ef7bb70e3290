#include "kernels/iq4_nl/codes.h"

namespace tally::kernels {
namespace {

constexpr LinearVariant kVariants[] = {
#define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, symbol},
#include "kernels/iq4_nl/variants.inc"
#undef TALLY_VARIANT
};

size_t group_bytes(size_t k) { return k / 32 * 2 * kIq4NlUnit; }

void pack(const std::byte* rows, size_t row_count, size_t k, std::byte* group) {
  pack_blocks<tensor::BlockIQ4_NL>(rows, row_count, k, group, kIq4NlUnit,
                                   [](const tensor::BlockIQ4_NL& block, std::byte* unit, size_t r) {
                                     // The file pairs the same nibbles: elements i and i + 16.
                                     for (size_t i = 0; i < 16; ++i)
                                       unit[nibble_offset(r, i)] = std::byte{block.q[i]};
                                     put_u16(unit, kIq4NlScale, r, block.d);
                                   });
}

void unpack_row(const std::byte* group, size_t lane, size_t k, float* out) {
  for (size_t b = 0; b < k / 32; ++b) expand(iq4_nl_codes(group, lane, b), out + 32 * b);
}

void dequantize(const std::byte* row, size_t k, float* out) {
  for (size_t b = 0; b < k / 32; ++b) {
    tensor::BlockIQ4_NL block;
    std::memcpy(&block, row + b * sizeof block, sizeof block);
    const float d = tensor::f16_to_f32(block.d);
    for (size_t i = 0; i < 32; ++i)
      out[32 * b + i] = d * static_cast<float>(tensor::kIq4Values[(block.q[i % 16] >> 4 * (i / 16)) & 15]);
  }
}

}  // namespace

LinearFamily iq4_nl_family() {
  LinearFormat format{};
  format.type = tensor::DType::kIQ4_NL;
  format.panel = PanelKind::kInt32;
  format.block = 32;
  format.group_bytes = group_bytes;
  format.pack = pack;
  format.unpack_row = unpack_row;
  format.dequantize = dequantize;
  return {format, kVariants};
}

}  // namespace tally::kernels
