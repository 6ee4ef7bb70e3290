#pragma once
// Q5_K for super_block.h: the order of elements in the file and in the packed unit.

#include "kernels/q4k/scale_min.h"
#include "kernels/q5k/q5k.h"
#include "kernels/super_block/nibbles.h"

namespace tally::kernels {

struct Q5KFormat {
  using Unit = Q5KUnit;
  using Block = tensor::BlockQ5_K;
  using Row = ScaleMinRow;

  static Row read(const Block& block) {
    Row row;
    read_scales(block, &row);
    for (size_t b = 0; b < 8; ++b) {
      for (size_t l = 0; l < 32; ++l) {
        const int low = (block.q[32 * (b / 2) + l] >> (4 * (b % 2))) & 15;
        const int high = (block.h[l] >> b) & 1;
        row.code[32 * b + l] = static_cast<uint8_t>(low | (high << 4));
      }
    }
    return row;
  }

  static void put(const Row& row, size_t r, uint8_t* unit) {
    for (size_t b = 0; b < 8; ++b) {
      const uint8_t* code = row.code + 32 * b;
      uint8_t* sub = unit + Unit::kSubBlock * b;
      store_nibbles(code, r, sub);
      uint32_t high = 0;  // four byte lanes, i = 0..3
      for (size_t j = 0; j < 4; ++j) {
        high |= ((load_word(code + 4 * j) >> 4) & 0x01010101u) << j;
        high |= ((load_word(code + 16 + 4 * j) >> 4) & 0x01010101u) << (4 + j);
      }
      store_word(sub + Unit::kHigh + 4 * r, high);
    }
    put_scales<Unit>(row, r, unit);
  }

  static Row get(const uint8_t* unit, size_t r) {
    Row row;
    for (size_t b = 0; b < 8; ++b) {
      uint8_t* code = row.code + 32 * b;
      const uint8_t* sub = unit + Unit::kSubBlock * b;
      load_nibbles(sub, r, code);
      const uint32_t high = load_word(sub + Unit::kHigh + 4 * r);
      for (size_t j = 0; j < 4; ++j) {
        store_word(code + 4 * j, load_word(code + 4 * j) | (((high >> j) & 0x01010101u) << 4));
        store_word(code + 16 + 4 * j,
                   load_word(code + 16 + 4 * j) | (((high >> (4 + j)) & 0x01010101u) << 4));
      }
    }
    get_scales<Unit>(unit, r, &row);
    return row;
  }

  static float value(const Row& row, size_t i) { return scale_min_value(row, i); }
  static float accumulate(const Row& row, const Int256Block& x, size_t token, float acc) {
    return scale_min_accumulate(row, x, token, acc);
  }
};

}  // namespace tally::kernels
