#include "kernels/encode/encode.h"
#include "kernels/f16/f16.h"
#include "tensor/blocks.h"

#include <cstring>

namespace tally::kernels {
namespace {

constexpr LinearVariant kVariants[] = {
#define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, symbol},
#include "kernels/f16/variants.inc"
#undef TALLY_VARIANT
};

size_t group_bytes(size_t k) { return k * kGroupRows * sizeof(uint16_t); }

void pack(const std::byte* rows, size_t row_count, size_t k, std::byte* group) {
  std::memset(group, 0, group_bytes(k));
  for (size_t row = 0; row < row_count; ++row)
    for (size_t i = 0; i < k; ++i)
      std::memcpy(group + 2 * (i * kGroupRows + row), rows + 2 * (row * k + i), 2);
}

float widen(const std::byte* value) {
  uint16_t half;
  std::memcpy(&half, value, 2);
  return tensor::f16_to_f32(half);
}

void unpack_row(const std::byte* group, size_t lane, size_t k, float* out) {
  for (size_t i = 0; i < k; ++i) out[i] = widen(group + 2 * (i * kGroupRows + lane));
}

void dequantize(const std::byte* row, size_t k, float* out) {
  for (size_t i = 0; i < k; ++i) out[i] = widen(row + 2 * i);
}

}  // namespace

LinearFamily f16_family() {
  return {{.type = tensor::DType::kF16,
           .panel = PanelKind::kF32,
           .block = 1,
           .group_bytes = group_bytes,
           .pack = pack,
           .unpack_row = unpack_row,
           .dequantize = dequantize,
           .encode = encode_f16,
           .run = nullptr,
           .isa = Isa::kScalar},
          kVariants};
}

}  // namespace tally::kernels
