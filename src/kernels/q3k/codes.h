#pragma once
// Q3_K for super_block.h: the order of elements in the file and in the packed unit.

#include "kernels/q2k/two_bits.h"
#include "kernels/q3k/q3k.h"
#include "kernels/super_block/signed_scales.h"

namespace tally::kernels {

struct Q3KFormat : SignedScales<Q3KUnit, 4> {
  using Block = tensor::BlockQ3_K;

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
    put_scales(row, r, unit);
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
    get_scales(unit, r, &row);
    return row;
  }
};

}  // namespace tally::kernels
