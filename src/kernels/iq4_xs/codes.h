#pragma once
// IQ4_XS for super_block.h: the order of elements in the file and in the packed unit, and the arithmetic of
// one block.

#include "kernels/iq4_xs/iq4_xs.h"
#include "kernels/panel.h"
#include "kernels/super_block/nibbles.h"
#include "tensor/blocks.h"

#include <cmath>

namespace tally::kernels {

struct Iq4XsFormat {
  using Unit = Iq4XsUnit;
  using Block = tensor::BlockIQ4_XS;
  struct Row {
    uint16_t d;       // f16
    int8_t scale[8];  // of each 32 elements
    uint8_t code[256];
  };

  static Row read(const Block& block) {
    Row row;
    row.d = block.d;
    for (int b = 0; b < 8; ++b) row.scale[b] = static_cast<int8_t>(tensor::iq4_xs_scale(block, b));
    for (size_t i = 0; i < 256; ++i)
      row.code[i] = (block.q[16 * (i / 32) + i % 16] >> (4 * (i % 32 / 16))) & 15;
    return row;
  }

  static void put(const Row& row, size_t r, uint8_t* unit) {
    for (size_t b = 0; b < 8; ++b) {
      store_nibbles(row.code + 32 * b, r, unit + Unit::kSubBlock * b);
      unit[Unit::kScale + 16 * b + r] = static_cast<uint8_t>(row.scale[b]);
    }
    std::memcpy(unit + Unit::kD + 2 * r, &row.d, 2);
  }

  static Row get(const uint8_t* unit, size_t r) {
    Row row;
    for (size_t b = 0; b < 8; ++b) {
      load_nibbles(unit + Unit::kSubBlock * b, r, row.code + 32 * b);
      row.scale[b] = static_cast<int8_t>(unit[Unit::kScale + 16 * b + r]);
    }
    std::memcpy(&row.d, unit + Unit::kD + 2 * r, 2);
    return row;
  }

  static float value(const Row& row, size_t i) {
    const float scale = tensor::f16_to_f32(row.d) * static_cast<float>(row.scale[i / 32]);
    return scale * static_cast<float>(tensor::kIq4Values[row.code[i]]);
  }

  static float accumulate(const Row& w, const Int256Block& x, size_t token, float acc) {
    const int8_t* q = x.q + 256 * token;
    int32_t isum = 0;
    for (size_t b = 0; b < 8; ++b) {
      int32_t dot = 0;
      for (size_t i = 32 * b; i < 32 * b + 32; ++i) dot += tensor::kIq4Values[w.code[i]] * q[i];
      isum += w.scale[b] * dot;
    }
    return std::fma(static_cast<float>(isum), tensor::f16_to_f32(w.d) * x.d[token], acc);
  }
};

}  // namespace tally::kernels
