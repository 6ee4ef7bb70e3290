#include "kernels/mxfp4/codes.h"

namespace tally::kernels {
namespace {

constexpr LinearVariant kVariants[] = {
#define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, symbol},
#include "kernels/mxfp4/variants.inc"
#undef TALLY_VARIANT
};

size_t group_bytes(size_t k) { return k / 32 * 2 * kMxfp4Unit; }

void pack(const std::byte* rows, size_t row_count, size_t k, std::byte* group) {
  pack_blocks<tensor::BlockMXFP4>(rows, row_count, k, group, kMxfp4Unit,
                                  [](const tensor::BlockMXFP4& block, std::byte* unit, size_t r) {
                                    // The file pairs the same nibbles: elements i and i + 16.
                                    for (size_t i = 0; i < 16; ++i)
                                      unit[nibble_offset(r, i)] = std::byte{block.q[i]};
                                    unit[kMxfp4Scale + r] = std::byte{block.e};
                                  });
}

void unpack_row(const std::byte* group, size_t lane, size_t k, float* out) {
  for (size_t b = 0; b < k / 32; ++b) expand(mxfp4_codes(group, lane, b), out + 32 * b);
}

void dequantize(const std::byte* row, size_t k, float* out) {
  for (size_t b = 0; b < k / 32; ++b) {
    tensor::BlockMXFP4 block;
    std::memcpy(&block, row + b * sizeof block, sizeof block);
    const float d = tensor::mxfp4_scale(block.e);
    for (size_t i = 0; i < 32; ++i)
      out[32 * b + i] = d * static_cast<float>(tensor::kMxfp4Values[(block.q[i % 16] >> 4 * (i / 16)) & 15]);
  }
}

}  // namespace

LinearFamily mxfp4_family() {
  LinearFormat format{};
  format.type = tensor::DType::kMXFP4;
  format.panel = PanelKind::kInt32;
  format.block = 32;
  format.group_bytes = group_bytes;
  format.pack = pack;
  format.unpack_row = unpack_row;
  format.dequantize = dequantize;
  return {format, kVariants};
}

}  // namespace tally::kernels
