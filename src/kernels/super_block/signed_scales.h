#pragma once
// What Q6_K and Q3_K share for super_block.h: a signed scale for each 16 elements, codes that count from
// kOffset, and so the arithmetic of one block.

#include "kernels/panel.h"
#include "tensor/blocks.h"

#include <cmath>
#include <cstring>

namespace tally::kernels {

template <class UnitOf, int kOffset>
struct SignedScales {
  using Unit = UnitOf;
  struct Row {
    uint16_t d;        // f16
    int8_t scale[16];  // of each 16 elements
    uint8_t code[256];
  };

  static void put_scales(const Row& row, size_t r, uint8_t* unit) {
    std::memcpy(unit + Unit::kD + 2 * r, &row.d, 2);
    for (size_t g = 0; g < 16; ++g) unit[Unit::kScale + 16 * g + r] = static_cast<uint8_t>(row.scale[g]);
  }
  static void get_scales(const uint8_t* unit, size_t r, Row* row) {
    std::memcpy(&row->d, unit + Unit::kD + 2 * r, 2);
    for (size_t g = 0; g < 16; ++g) row->scale[g] = static_cast<int8_t>(unit[Unit::kScale + 16 * g + r]);
  }

  static float value(const Row& row, size_t i) {
    const float scale = tensor::f16_to_f32(row.d) * static_cast<float>(row.scale[i / 16]);
    return scale * static_cast<float>(row.code[i] - kOffset);
  }

  static float accumulate(const Row& w, const Int256Block& x, size_t token, float acc) {
    const int8_t* q = x.q + 256 * token;
    int32_t isum = 0;
    for (size_t g = 0; g < 16; ++g) {
      int32_t dot = 0;
      for (size_t i = 16 * g; i < 16 * g + 16; ++i) dot += (w.code[i] - kOffset) * q[i];
      isum += w.scale[g] * dot;
    }
    return std::fma(static_cast<float>(isum), tensor::f16_to_f32(w.d) * x.d[token], acc);
  }
};

}  // namespace tally::kernels
