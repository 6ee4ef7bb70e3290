#include "kernels/bf16/bf16.h"
#include "kernels/encode/encode.h"
#include "tensor/blocks.h"

#include <cstring>

namespace tally::kernels {
namespace {

constexpr LinearVariant kVariants[] = {
#define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, symbol},
#include "kernels/bf16/variants.inc"
#undef TALLY_VARIANT
};

size_t group_bytes(size_t k) { return (k + 1) / 2 * kGroupRows * 2 * sizeof(uint16_t); }

size_t offset(size_t row, size_t k) { return 2 * ((k / 2 * kGroupRows + row) * 2 + k % 2); }

void pack(const std::byte* rows, size_t row_count, size_t k, std::byte* group) {
  std::memset(group, 0, group_bytes(k));
  for (size_t row = 0; row < row_count; ++row)
    for (size_t i = 0; i < k; ++i) std::memcpy(group + offset(row, i), rows + 2 * (row * k + i), 2);
}

float widen(const std::byte* value) {
  uint16_t half;
  std::memcpy(&half, value, 2);
  return tensor::bf16_to_f32(half);
}

void unpack_row(const std::byte* group, size_t lane, size_t k, float* out) {
  for (size_t i = 0; i < k; ++i) out[i] = widen(group + offset(lane, i));
}

void dequantize(const std::byte* row, size_t k, float* out) {
  for (size_t i = 0; i < k; ++i) out[i] = widen(row + 2 * i);
}

}  // namespace

LinearFamily bf16_family() {
  return {{.type = tensor::DType::kBF16,
           .panel = PanelKind::kF32,
           .block = 1,
           .group_bytes = group_bytes,
           .pack = pack,
           .unpack_row = unpack_row,
           .dequantize = dequantize,
           .encode = encode_bf16,
           .run = nullptr,
           .isa = Isa::kScalar},
          kVariants};
}

}  // namespace tally::kernels
