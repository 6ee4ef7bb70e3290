#include "kernels/encode/encode.h"
#include "kernels/f32/f32.h"

#include <cstring>

namespace tally::kernels {
namespace {

constexpr LinearVariant kVariants[] = {
#define TALLY_VARIANT(isa, symbol) {Isa::isa, #symbol, symbol},
#include "kernels/f32/variants.inc"
#undef TALLY_VARIANT
};

size_t group_bytes(size_t k) { return k * kGroupRows * sizeof(float); }

void pack(const std::byte* rows, size_t row_count, size_t k, std::byte* group) {
  std::memset(group, 0, group_bytes(k));
  for (size_t row = 0; row < row_count; ++row)
    for (size_t i = 0; i < k; ++i)
      std::memcpy(group + (i * kGroupRows + row) * sizeof(float), rows + (row * k + i) * sizeof(float),
                  sizeof(float));
}

void unpack_row(const std::byte* group, size_t lane, size_t k, float* out) {
  for (size_t i = 0; i < k; ++i)
    std::memcpy(out + i, group + (i * kGroupRows + lane) * sizeof(float), sizeof(float));
}

void dequantize(const std::byte* row, size_t k, float* out) { std::memcpy(out, row, k * sizeof(float)); }

}  // namespace

LinearFamily f32_family() {
  return {{.type = tensor::DType::kF32,
           .panel = PanelKind::kF32,
           .block = 1,
           .group_bytes = group_bytes,
           .pack = pack,
           .unpack_row = unpack_row,
           .dequantize = dequantize,
           .encode = encode_f32,
           .run = nullptr,
           .isa = Isa::kScalar},
          kVariants};
}

}  // namespace tally::kernels
