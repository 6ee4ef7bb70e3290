#pragma once
// Reads one row's block out of a packed Q5_1 unit.

#include "kernels/block32.h"
#include "kernels/q5_1/q5_1.h"
#include "tensor/blocks.h"

namespace tally::kernels {

inline Codes32 q5_1_codes(const std::byte* group, size_t lane, size_t block) {
  const std::byte* unit = group + unit_offset(kQ5_1Unit, block, lane);
  const size_t r = lane % kUnitRows;
  Codes32 c;
  for (size_t k = 0; k < 16; ++k) {
    const int pair = static_cast<int>(unit[nibble_offset(r, k)]);
    const int high = static_cast<int>(unit[kQ5_1High + 4 * r + k % 4]) >> (k / 4);
    c.q[k] = static_cast<int8_t>((pair & 15) | (high & 1) << 4);
    c.q[k + 16] = static_cast<int8_t>((pair >> 4) | (high & 16));
  }
  c.d = tensor::f16_to_f32(get_u16(unit, kQ5_1Scale, r));
  c.m = tensor::f16_to_f32(get_u16(unit, kQ5_1Min, r));
  return c;
}

}  // namespace tally::kernels
