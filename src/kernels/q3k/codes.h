#pragma once
// Q3_K for super_block.h: the order of elements in the file and in the packed unit, and the arithmetic of one
// block.

#include "kernels/panel.h"
#include "kernels/q2k/two_bits.h"
#include "kernels/q3k/q3k.h"
#include "tensor/blocks.h"

#include <cmath>

namespace tally::kernels {

struct Q3KFormat {
  using Unit = Q3KUnit;
  using Block = tensor::BlockQ3_K;
  struct Row {
    uint16_t d;        // f16
    int8_t scale[16];  // of each 16 elements
    uint8_t code[256];
  };

  static Row read(const Block& block) {
    Row row;
    row.d = block.d;
    for (int g = 0; g < 16; ++g) row.scale[g] = static_cast<int8_t>(tensor::q3k_scale(block.sc, g));
    for (size_t i = 0; i < 256; ++i) {
      const int low = (block.q[32 * (i / 128) + i % 32] >> (2 * (i % 128 / 32))) & 3;
      const int high = (block.h[i % 32] >> (i / 32)) & 1;
      row.code[i] = static_cast<uint8_t>(low | (high << 2));
    }
    return row;
  }

  static void put(const Row& row, size_t r, uint8_t* unit) {
    for (size_t b = 0; b < 8; ++b) {
      const uint8_t* code = row.code + 32 * b;
      uint8_t* sub = unit + Unit::kSubBlock * b;
      store_two_bits(code, r, sub);
      store_two_bits(code + 16, r, sub + 64);
      uint32_t high = 0;  // four byte lanes, i = 0..3
      for (size_t j = 0; j < 8; ++j) high |= ((load_word(code + 4 * j) >> 2) & 0x01010101u) << j;
      store_word(sub + Unit::kHigh + 4 * r, high);
    }
    std::memcpy(unit + Unit::kD + 2 * r, &row.d, 2);
    for (size_t g = 0; g < 16; ++g) unit[Unit::kScale + 16 * g + r] = static_cast<uint8_t>(row.scale[g]);
  }

  static Row get(const uint8_t* unit, size_t r) {
    Row row;
    for (size_t b = 0; b < 8; ++b) {
      uint8_t* code = row.code + 32 * b;
      const uint8_t* sub = unit + Unit::kSubBlock * b;
      load_two_bits(sub, r, code);
      load_two_bits(sub + 64, r, code + 16);
      const uint32_t high = load_word(sub + Unit::kHigh + 4 * r);
      for (size_t j = 0; j < 8; ++j)
        store_word(code + 4 * j, load_word(code + 4 * j) | (((high >> j) & 0x01010101u) << 2));
    }
    std::memcpy(&row.d, unit + Unit::kD + 2 * r, 2);
    for (size_t g = 0; g < 16; ++g) row.scale[g] = static_cast<int8_t>(unit[Unit::kScale + 16 * g + r]);
    return row;
  }

  static float value(const Row& row, size_t i) {
    const float scale = tensor::f16_to_f32(row.d) * static_cast<float>(row.scale[i / 16]);
    return scale * static_cast<float>(row.code[i] - 4);
  }

  static float accumulate(const Row& w, const Int256Block& x, size_t token, float acc) {
    const int8_t* q = x.q + 256 * token;
    int32_t isum = 0;
    for (size_t g = 0; g < 16; ++g) {
      int32_t dot = 0;
      for (size_t i = 16 * g; i < 16 * g + 16; ++i) dot += (w.code[i] - 4) * q[i];
      isum += w.scale[g] * dot;
    }
    return std::fma(static_cast<float>(isum), tensor::f16_to_f32(w.d) * x.d[token], acc);
  }
};

}  // namespace tally::kernels
