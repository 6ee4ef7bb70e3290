#pragma once
// Q6_K for super_block.h: the order of elements in the file and in the packed unit, and the arithmetic of one
// block.

#include "kernels/panel.h"
#include "kernels/q4k/nibbles.h"
#include "kernels/q6k/q6k.h"
#include "tensor/blocks.h"

#include <cmath>

namespace tally::kernels {

struct Q6KFormat {
  using Unit = Q6KUnit;
  using Block = tensor::BlockQ6_K;
  struct Row {
    uint16_t d;        // f16
    int8_t scale[16];  // of each 16 elements
    uint8_t code[256];
  };

  static Row read(const Block& block) {
    Row row;
    row.d = block.d;
    std::memcpy(row.scale, block.sc, 16);
    for (size_t half = 0; half < 2; ++half) {
      for (size_t s = 0; s < 4; ++s) {
        for (size_t l = 0; l < 32; ++l) {
          const int low = (block.l[64 * half + 32 * (s % 2) + l] >> (4 * (s / 2))) & 15;
          const int high = (block.h[32 * half + l] >> (2 * s)) & 3;
          row.code[128 * half + 32 * s + l] = static_cast<uint8_t>(low | (high << 4));
        }
      }
    }
    return row;
  }

  static void put(const Row& row, size_t r, uint8_t* unit) {
    for (size_t b = 0; b < 8; ++b) {
      const uint8_t* code = row.code + 32 * b;
      uint8_t* sub = unit + Unit::kSubBlock * b;
      store_nibbles(code, r, sub);
      for (size_t pair = 0; pair < 2; ++pair) {
        uint32_t high = 0;  // four byte lanes, i = 0..3
        for (size_t odd = 0; odd < 2; ++odd) {
          const size_t k = 4 * (2 * pair + odd);
          high |= ((load_word(code + k) >> 4) & 0x03030303u) << (4 * odd);
          high |= ((load_word(code + 16 + k) >> 4) & 0x03030303u) << (4 * odd + 2);
        }
        store_word(sub + Unit::kHigh + 64 * pair + 4 * r, high);
      }
    }
    std::memcpy(unit + Unit::kD + 2 * r, &row.d, 2);
    for (size_t g = 0; g < 16; ++g) unit[Unit::kScale + 16 * g + r] = static_cast<uint8_t>(row.scale[g]);
  }

  static Row get(const uint8_t* unit, size_t r) {
    Row row;
    for (size_t b = 0; b < 8; ++b) {
      uint8_t* code = row.code + 32 * b;
      const uint8_t* sub = unit + Unit::kSubBlock * b;
      load_nibbles(sub, r, code);
      for (size_t j = 0; j < 4; ++j) {
        const uint32_t high = load_word(sub + Unit::kHigh + 64 * (j / 2) + 4 * r) >> (4 * (j % 2));
        store_word(code + 4 * j, load_word(code + 4 * j) | ((high & 0x03030303u) << 4));
        store_word(code + 16 + 4 * j, load_word(code + 16 + 4 * j) | (((high >> 2) & 0x03030303u) << 4));
      }
    }
    std::memcpy(&row.d, unit + Unit::kD + 2 * r, 2);
    for (size_t g = 0; g < 16; ++g) row.scale[g] = static_cast<int8_t>(unit[Unit::kScale + 16 * g + r]);
    return row;
  }

  static float value(const Row& row, size_t i) {
    const float scale = tensor::f16_to_f32(row.d) * static_cast<float>(row.scale[i / 16]);
    return scale * static_cast<float>(row.code[i] - 32);
  }

  static float accumulate(const Row& w, const Int256Block& x, size_t token, float acc) {
    const int8_t* q = x.q + 256 * token;
    int32_t isum = 0;
    for (size_t g = 0; g < 16; ++g) {
      int32_t dot = 0;
      for (size_t i = 16 * g; i < 16 * g + 16; ++i) dot += (w.code[i] - 32) * q[i];
      isum += w.scale[g] * dot;
    }
    return std::fma(static_cast<float>(isum), tensor::f16_to_f32(w.d) * x.d[token], acc);
  }
};

}  // namespace tally::kernels
