#pragma once
// Q6_K for super_block.h: the order of elements in the file and in the packed unit.

#include "kernels/q6k/q6k.h"
#include "kernels/super_block/nibbles.h"
#include "kernels/super_block/signed_scales.h"

namespace tally::kernels {

struct Q6KFormat : SignedScales<Q6KUnit, 32> {
  using Block = tensor::BlockQ6_K;

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
    put_scales(row, r, unit);
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
    get_scales(unit, r, &row);
    return row;
  }
};

}  // namespace tally::kernels
