#pragma once
// Reads one row's block out of a packed Q4_0 unit.

#include "kernels/block32.h"
#include "kernels/q4_0/q4_0.h"
#include "tensor/blocks.h"

namespace tally::kernels {

inline Codes32 q4_0_codes(const std::byte* group, size_t lane, size_t block) {
  const std::byte* unit = group + unit_offset(kQ4_0Unit, block, lane);
  const size_t r = lane % kUnitRows;
  Codes32 c;
  for (size_t k = 0; k < 16; ++k) {
    const int pair = static_cast<int>(unit[nibble_offset(r, k)]);
    c.q[k] = static_cast<int8_t>((pair & 15) - 8);
    c.q[k + 16] = static_cast<int8_t>((pair >> 4) - 8);
  }
  c.d = tensor::f16_to_f32(get_u16(unit, kQ4_0Scale, r));
  c.m = 0;
  return c;
}

}  // namespace tally::kernels
