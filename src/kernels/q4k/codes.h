#pragma once
// Q4_K for super_block.h: the order of elements in the file and in the packed unit.

#include "kernels/q4k/q4k.h"
#include "kernels/q4k/scale_min.h"
#include "kernels/super_block/nibbles.h"

namespace tally::kernels {

struct Q4KFormat {
  using Unit = Q4KUnit;
  using Block = tensor::BlockQ4_K;
  using Row = ScaleMinRow;

  static Row read(const Block& block) {
    Row row;
    read_scales(block, &row);
    for (size_t pair = 0; pair < 4; ++pair) {
      for (size_t l = 0; l < 32; ++l) {
        row.code[64 * pair + l] = block.q[32 * pair + l] & 15;
        row.code[64 * pair + 32 + l] = block.q[32 * pair + l] >> 4;
      }
    }
    return row;
  }

  static void put(const Row& row, size_t r, uint8_t* unit) {
    for (size_t b = 0; b < 8; ++b) store_nibbles(row.code + 32 * b, r, unit + Unit::kSubBlock * b);
    put_scales<Unit>(row, r, unit);
  }

  static Row get(const uint8_t* unit, size_t r) {
    Row row;
    for (size_t b = 0; b < 8; ++b) load_nibbles(unit + Unit::kSubBlock * b, r, row.code + 32 * b);
    get_scales<Unit>(unit, r, &row);
    return row;
  }

  static float value(const Row& row, size_t i) { return scale_min_value(row, i); }
  static float accumulate(const Row& row, const Int256Block& x, size_t token, float acc) {
    return scale_min_accumulate(row, x, token, acc);
  }
};

}  // namespace tally::kernels
