#pragma once
// Weights and activations for tests and benches of the linear families.

#include "kernels/linear.h"
#include "tensor/blocks.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace tally::kernels {

// Bytes at a 64-byte boundary, or a given distance behind one.
class AlignedBytes {
 public:
  explicit AlignedBytes(size_t bytes, size_t offset = 0)
      : storage_(bytes + offset + 64), offset_(offset), size_(bytes) {}

  std::byte* data() {
    const auto address = reinterpret_cast<uintptr_t>(storage_.data());
    return storage_.data() + (64 - address % 64) % 64 + offset_;
  }
  size_t size() const { return size_; }

 private:
  std::vector<std::byte> storage_;
  size_t offset_, size_;
};

enum class WeightMode {
  kRandom,
  kAllLow,
  kAllHigh,
  kAlternating,
  kZeroScale,
  kSubnormalScale,
  kInfiniteScale
};
inline constexpr WeightMode kWeightModes[] = {
    WeightMode::kRandom,    WeightMode::kAllLow,         WeightMode::kAllHigh,      WeightMode::kAlternating,
    WeightMode::kZeroScale, WeightMode::kSubnormalScale, WeightMode::kInfiniteScale};

using Random = std::mt19937;

inline float random_float(Random& random, float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(random);
}

// A scale or an F16 weight.
inline uint16_t random_half(Random& random, WeightMode mode) {
  switch (mode) {
    case WeightMode::kZeroScale:
      return random() % 2 ? 0x8000 : 0;
    case WeightMode::kSubnormalScale:
      return static_cast<uint16_t>((random() & 0x8000u) | (random() % 0x400u));
    case WeightMode::kInfiniteScale:
      if (random() % 8 == 0) return static_cast<uint16_t>(0x7C00u | (random() & 0x8000u));
      [[fallthrough]];
    default:
      return tensor::f32_to_f16(random_float(random, -0.05f, 0.05f));
  }
}

inline float random_weight(Random& random, WeightMode mode) {
  if (mode == WeightMode::kZeroScale) return random() % 2 ? -0.0f : 0.0f;
  if (mode == WeightMode::kSubnormalScale) return random_float(random, -1e-38f, 1e-38f);
  if (mode == WeightMode::kInfiniteScale && random() % 64 == 0)
    return -std::numeric_limits<float>::infinity();
  return random_float(random, -1, 1);
}

// The exponent byte of an MXFP4 block. The engine's float mode counts 0 and 1 as zero scales; 255 overflows
// the larger values.
inline uint8_t random_exponent(Random& random, WeightMode mode) {
  switch (mode) {
    case WeightMode::kZeroScale:
      return static_cast<uint8_t>(random() % 2);
    case WeightMode::kSubnormalScale:
      return static_cast<uint8_t>(random() % 4);
    case WeightMode::kInfiniteScale:
      if (random() % 8 == 0) return 255;
      [[fallthrough]];
    default:
      return static_cast<uint8_t>(118 + random() % 6);
  }
}

// Where the f16 scales lie in a block.
inline std::vector<size_t> scale_offsets(tensor::DType type) {
  using enum tensor::DType;
  switch (type) {
    case kQ4_0:
    case kQ5_0:
    case kQ8_0:
    case kIQ4_NL:
    case kIQ4_XS:
      return {0};
    case kQ4_1:
    case kQ5_1:
    case kQ4_K:
    case kQ5_K:
      return {0, 2};
    case kQ2_K:
      return {80, 82};
    case kQ3_K:
      return {108};
    case kQ6_K:
      return {208};
    default:
      return {};
  }
}

// GGUF data of rows x k weights: codes by mode, scales sane or not by mode.
inline std::vector<std::byte> make_rows(tensor::DType type, size_t rows, size_t k, Random& random,
                                        WeightMode mode) {
  std::vector<std::byte> data(rows * tensor::row_bytes(type, k));
  const auto put = [&](size_t offset, auto value) {
    std::memcpy(data.data() + offset, &value, sizeof value);
  };
  using enum tensor::DType;
  if (type == kF32)
    for (size_t i = 0; i < data.size(); i += 4) put(i, random_weight(random, mode));
  else if (type == kF16)
    for (size_t i = 0; i < data.size(); i += 2) put(i, random_half(random, mode));
  else if (type == kBF16)
    for (size_t i = 0; i < data.size(); i += 2) put(i, tensor::f32_to_bf16(random_weight(random, mode)));
  else
    for (size_t i = 0; i < data.size(); ++i) {
      const bool high = mode == WeightMode::kAllHigh || (mode == WeightMode::kAlternating && i % 2 == 0);
      const bool low = mode == WeightMode::kAllLow || mode == WeightMode::kAlternating;
      // 0x80: the largest negative code of Q8_0.
      data[i] = high  ? std::byte{0xFF}
                : low ? std::byte{type == kQ8_0 ? uint8_t{0x80} : uint8_t{0}}
                      : static_cast<std::byte>(random() & 255u);
    }
  const size_t block = tensor::dtype_info(type).block_bytes;
  for (const size_t offset : scale_offsets(type))
    for (size_t i = 0; i < data.size(); i += block) put(i + offset, random_half(random, mode));
  if (type == kMXFP4)
    for (size_t i = 0; i < data.size(); i += block) put(i, random_exponent(random, mode));
  return data;
}

// Packs all rows into groups of 32.
inline AlignedBytes pack_rows(const LinearFormat& format, const std::vector<std::byte>& data, size_t rows,
                              size_t k) {
  const size_t groups = (rows + kGroupRows - 1) / kGroupRows, row_bytes = data.size() / rows;
  AlignedBytes packed(groups * format.group_bytes(k) + kTailPadding);
  std::memset(packed.data(), 0xCC, groups * format.group_bytes(k));
  for (size_t g = 0; g < groups; ++g) {
    const size_t count = rows - g * kGroupRows < kGroupRows ? rows - g * kGroupRows : kGroupRows;
    format.pack(data.data() + g * kGroupRows * row_bytes, count, k,
                packed.data() + g * format.group_bytes(k));
  }
  return packed;
}

// The panel of x [tokens][k] by `make`.
inline AlignedBytes make_panel(PanelFn make, PanelKind kind, const std::vector<float>& x, size_t tokens,
                               size_t k) {
  AlignedBytes panel(panel_bytes(kind, tokens, k));
  std::vector<uint8_t> nonfinite(tokens);
  make({.x = x.data(),
        .x_stride = k,
        .tokens = tokens,
        .k = k,
        .token_begin = 0,
        .token_end = tokens,
        .panel = panel.data(),
        .nonfinite = nonfinite.data()});
  return panel;
}

inline PanelFn scalar_panel(PanelKind kind) { return panel_variants(kind).back().entry; }

}  // namespace tally::kernels
