#pragma once
// Q2_K for super_block.h: the order of elements in the file and in the packed unit, and the arithmetic of one
// block.

#include "kernels/panel.h"
#include "kernels/q2k/q2k.h"
#include "kernels/q2k/two_bits.h"
#include "tensor/blocks.h"

#include <cmath>

namespace tally::kernels {

struct Q2KFormat {
  using Unit = Q2KUnit;
  using Block = tensor::BlockQ2_K;
  struct Row {
    uint16_t d, dmin;       // f16
    uint8_t scale_min[16];  // of each 16 elements: scale | minimum << 4
    uint8_t code[256];

    int scale(size_t g) const { return scale_min[g] & 15; }
    int min(size_t g) const { return scale_min[g] >> 4; }
  };

  static Row read(const Block& block) {
    Row row;
    row.d = block.d;
    row.dmin = block.dmin;
    std::memcpy(row.scale_min, block.sc, 16);
    for (size_t i = 0; i < 256; ++i)
      row.code[i] = (block.q[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
    return row;
  }

  static void put(const Row& row, size_t r, uint8_t* unit) {
    for (size_t g = 0; g < 16; ++g) {
      store_two_bits(row.code + 16 * g, r, unit + 64 * g);
      unit[Unit::kScale + 16 * g + r] = row.scale_min[g];
    }
    std::memcpy(unit + Unit::kD + 2 * r, &row.d, 2);
    std::memcpy(unit + Unit::kMinD + 2 * r, &row.dmin, 2);
  }

  static Row get(const uint8_t* unit, size_t r) {
    Row row;
    for (size_t g = 0; g < 16; ++g) {
      load_two_bits(unit + 64 * g, r, row.code + 16 * g);
      row.scale_min[g] = unit[Unit::kScale + 16 * g + r];
    }
    std::memcpy(&row.d, unit + Unit::kD + 2 * r, 2);
    std::memcpy(&row.dmin, unit + Unit::kMinD + 2 * r, 2);
    return row;
  }

  static float value(const Row& row, size_t i) {
    const float scale = tensor::f16_to_f32(row.d) * static_cast<float>(row.scale(i / 16));
    const float min = tensor::f16_to_f32(row.dmin) * static_cast<float>(row.min(i / 16));
    return scale * static_cast<float>(row.code[i]) - min;
  }

  static float accumulate(const Row& w, const Int256Block& x, size_t token, float acc) {
    const int8_t* q = x.q + 256 * token;
    int32_t isum = 0, msum = 0;
    for (size_t g = 0; g < 16; ++g) {
      int32_t dot = 0;
      for (size_t i = 16 * g; i < 16 * g + 16; ++i) dot += w.code[i] * q[i];
      isum += w.scale(g) * dot;
      msum += w.min(g) * x.sum16[16 * token + g];
    }
    const float da = x.d[token];
    acc = std::fma(static_cast<float>(isum), tensor::f16_to_f32(w.d) * da, acc);
    return std::fma(-static_cast<float>(msum), tensor::f16_to_f32(w.dmin) * da, acc);
  }
};

}  // namespace tally::kernels
